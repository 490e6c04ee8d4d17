"""The checks of `anchorage doctor`: each returns what it found, and what to do about it."""

from __future__ import annotations

import difflib
import os
import shutil

import httpx2
from sqlalchemy.exc import SQLAlchemyError

from app import __version__
from app.cli.diagnosis.backend_checks import DoctorFinding, State, examine_backends
from app.cli.shared import local_url, service_of
from app.settings import Settings

#: variables of the command line and of tests, which are not settings
OTHER_VARIABLES = {
    "ANCHORAGE_URL",
    "ANCHORAGE_API_KEY",
    "ANCHORAGE_DATA",
    "ANCHORAGE_BENCHMARK_CACHE",
}

#: free disk below which a check warns, and fails
FEW_BYTES, TOO_FEW_BYTES = 5 * 2**30, 2**28

#: seconds for which the service may be silent
URL_ANSWER_S = 5.0


def examine(settings: Settings, url: str | None) -> list[DoctorFinding]:
    """Return the findings of all checks. A check never raises, and changes no data."""
    findings = [*_variables(), _data_dir(settings), _devices(settings)]
    if all(finding.state != "failed" for finding in findings):
        try:
            findings += examine_backends(settings)
        except (ValueError, ImportError, SQLAlchemyError, OSError) as error:
            advice = "Correct this setting, and try again."
            findings.append(DoctorFinding("settings", "failed", str(error), advice))
    return [*findings, _service(settings, url)]


def _variables() -> list[DoctorFinding]:
    known = {f"ANCHORAGE_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    given = {name for name in os.environ if name.upper().startswith("ANCHORAGE_")}
    unknown = sorted(name for name in given if name.upper() not in known)
    if not unknown:
        return [DoctorFinding("settings", "ok", f"{len(given)} ANCHORAGE_ variables are set.")]
    found = []
    for name in unknown:
        near = difflib.get_close_matches(name.upper(), known, n=1)
        advice = f"Did you mean {near[0]}?" if near else "Remove it, or see the page of settings."
        found.append(DoctorFinding("settings", "warning", f"{name} is no setting.", advice))
    return found


def _data_dir(settings: Settings) -> DoctorFinding:
    folder = settings.data_dir
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return DoctorFinding(
            "data dir",
            "failed",
            f"This user cannot write to {existing}.",
            "Let this user write to it, or set ANCHORAGE_DATA_DIR to another folder.",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{folder} has {free / 2**30:,.1f} GiB of free disk."
    if not folder.exists():
        detail = f"{folder} does not exist yet; its disk has {free / 2**30:,.1f} GiB free."
    if free < FEW_BYTES:
        state: State = "failed" if free < TOO_FEW_BYTES else "warning"
        return DoctorFinding("data dir", state, detail, "Make room, or use a larger disk.")
    return DoctorFinding("data dir", "ok", detail)


def _devices(settings: Settings) -> DoctorFinding:
    from workers.processes import devices

    try:
        found = devices(settings.devices)
    except ValueError as error:
        return DoctorFinding("devices", "failed", str(error), "Correct ANCHORAGE_DEVICES.")
    return DoctorFinding("devices", "ok", f"Jobs and models run on {', '.join(found)}.")


def _service(settings: Settings, url: str | None) -> DoctorFinding:
    used = service_of(settings)  # where the service of the data folder listens
    found = used if used is not None and used.startswith("http") else None
    usual = local_url(f"http://{settings.host}:{settings.port}")
    address = local_url((url or found or usual).rstrip("/"))
    try:
        with httpx2.Client(timeout=URL_ANSWER_S) as client:
            live = client.get(f"{address}/livez")
            ready = client.get(f"{address}/readyz")
        version, status = live.json()["version"], ready.json()["status"]
    except httpx2.HTTPError as error:
        return DoctorFinding(
            "service",
            "failed" if url else "warning",
            f"No service answers at {address}: {error or type(error).__name__}",
            "Start it with `anchorage serve`, or give its address with --url.",
        )
    except (ValueError, KeyError, TypeError):
        return DoctorFinding(
            "service",
            "failed",
            f"What answers at {address} is another program, and not Anchorage.",
            "Stop it, or choose another port with ANCHORAGE_PORT or `anchorage serve --port`.",
        )
    if found != address and (url is None or _is_here(address)):
        uses = f"Its service listens at {found}." if found else "No service uses this one."
        return DoctorFinding(
            "service",
            "warning",
            f"The service at {address} uses another data folder than "
            f"{settings.data_dir.absolute()}. {uses}",
            "Set ANCHORAGE_DATA_DIR to the folder of the service, or stop it.",
        )
    if status != "ok":
        away = ", ".join(name for name, value in ready.json().items() if value is False)
        return DoctorFinding(
            "service",
            "failed" if status == "unavailable" else "warning",
            f"The service at {address} is {status}: {away or 'see its logs'}.",
            "See the checks above.",
        )
    if version != __version__:
        return DoctorFinding(
            "service",
            "warning",
            f"The service at {address} has version {version}, and this command {__version__}.",
            "Restart it after an upgrade, or use its own command.",
        )
    uses = " and uses this data folder" if found == address else ""
    return DoctorFinding("service", "ok", f"The service at {address} is ready{uses}.")


def _is_here(address: str) -> bool:
    """Return whether an address is of this machine, whose services announce themselves."""
    return httpx2.URL(address).host in ("127.0.0.1", "localhost", "::1")
