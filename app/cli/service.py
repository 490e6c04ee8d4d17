"""The service that commands talk to: a named one, the one that uses the data folder, or their own.

Nothing here may import the service itself: with a running one, a command needs only HTTP.
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, get_args
from urllib.parse import quote

import httpx2
import typer
from typer.models import OptionInfo

from app.cli.output import name_rows
from app.cli.shared import (
    SOCKET_SCHEME,
    explain_faults,
    local_url,
    lock_data_dir,
    read_settings,
    service_of,
)

if TYPE_CHECKING:
    from app.settings import Settings

Url = Annotated[
    str | None,
    typer.Option(
        envvar="ANCHORAGE_URL",
        help="Address of the service; default: the one that uses the data folder, or one that the "
        "command starts for itself.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="ANCHORAGE_API_KEY",
        help="API key, which says the project; a service on this machine may need none.",
        show_default=False,
    ),
]

#: seconds to connect; an answer may take as long as it needs
CONNECT_S = 5.0

#: seconds for which a process may hold the data folder before it says where it listens
ANNOUNCE_S = 60.0

#: how often a job is looked at
LOOK_S = 0.25

#: the exit code of a command that the service refused
REFUSED = 2

ENDED = ("succeeded", "failed", "cancelled")

#: fields of the API by the option that sets them, where the names differ
OPTION_OF = {"inputs": "text", "queries": "vectors"}

#: a field of the API in a sentence, perhaps with its value
FIELD = re.compile(r"`([a-z][a-z_]*)(?:: ?([^`\s]+))?`")


class Refused(Exception):
    """The service refused a request: its problem document, or what came in place of one."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail", ""))
        self.status = status
        self.code: str = problem.get("code", "")
        self.problem = problem


class Service:
    """The API of one service. The first request opens it, so that wrong options cost no start."""

    def __init__(self, url: str | None, api_key: str | None) -> None:
        self._given, self._key = url, api_key
        self._opened = ExitStack()
        self._http: httpx2.Client | None = None
        #: where people reach it; None: it is the command's own
        self.url: str | None = None
        #: settings of a service that the command starts, besides those of the environment
        self.own_settings: dict[str, Any] = {}

    @property
    def home(self) -> str:
        """Where the service keeps what it gets, in words."""
        return (
            f"the service at {self.url}" if self.url else str(read_settings().data_dir.absolute())
        )

    def close(self) -> None:
        """Close the connection, and stop a service of the command's own."""
        self._opened.close()

    @property
    def http(self) -> httpx2.Client:
        """The client, connected to a service."""
        _keep_quiet()
        if self._http is None:
            self._http = self._opened.enter_context(self._connect())
        return self._http

    def call(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Return the answer, after the fit that it may need. Raises Refused."""
        while True:
            try:
                answer = self.http.request(method, path, **request)
            except httpx2.TransportError as error:
                raise typer.BadParameter(self._silence(error)) from None
            if answer.is_error:
                raise Refused(answer.status_code, _problem(answer))
            if answer.status_code == 202 and answer.json().get("kind") == "fit":
                self.wait(answer.json())
                continue
            return answer

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of a GET."""
        given = {name: value for name, value in params.items() if value is not None}
        return self.call("GET", path, params=given).json()

    def post(self, path: str, **body: Any) -> Any:
        """Return the JSON of a POST, without the members that are None."""
        given = {name: value for name, value in body.items() if value is not None}
        return self.call("POST", path, json=given).json()

    def find(self, *parts: str) -> dict[str, Any] | None:
        """Return a resource; None if there is none of that name."""
        try:
            return dict(self.get(at(*parts)))
        except Refused as error:
            if error.status in (404, 422):  # 422: what cannot be a name
                return None
            raise

    def post_nothing(self, path: str) -> Any:
        """Return the JSON of a POST without a body."""
        return self.call("POST", path).json()

    def pages(self, path: str, member: str) -> list[dict[str, Any]]:
        """Return the members of all pages of a list by name."""
        found: list[dict[str, Any]] = []
        while page := self.get(path, after=found[-1]["name"] if found else None)[member]:
            found += page
        return found

    def wait(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a job once it has succeeded. Raises Refused; a Ctrl-C cancels it."""
        try:
            while job["state"] not in ENDED:
                time.sleep(LOOK_S)
                job = self.get(f"/jobs/{job['id']}")
        except KeyboardInterrupt:
            self.call("POST", f"/jobs/{job['id']}/cancel")
            raise
        if job["state"] != "succeeded":
            cancelled = {"detail": f"The job {job['id']} was cancelled."}
            raise Refused(409, job.get("error") or cancelled)
        return job.get("result") or {}

    @contextmanager
    def _connect(self) -> Iterator[httpx2.Client]:
        if self._given is not None:
            self.url = self._given.rstrip("/")
            with self._client(self.url) as http:
                yield http
            return
        with explain_faults():
            settings = read_settings()
            address = _announced(settings)
        if address is None:
            with self._own(settings) as http:
                yield http
            return
        if not address.startswith(SOCKET_SCHEME):
            self.url = address
        with self._client(address) as http:
            yield http

    def _client(self, address: str) -> httpx2.Client:
        """Return a client. Raises typer.BadParameter for no HTTP address."""
        transport = None
        if address.startswith(SOCKET_SCHEME):
            transport = httpx2.HTTPTransport(uds=address.removeprefix(SOCKET_SCHEME))
            address = "http://127.0.0.1"
        elif not address.startswith(("http://", "https://")):
            raise typer.BadParameter(f"--url: {address} is no address such as http://host:8080.")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            return httpx2.Client(
                base_url=address,
                headers=headers,
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                transport=transport,
                trust_env=self._given is not None,
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise typer.BadParameter(f"--url: {address} is no address: {error}") from None

    @contextmanager
    def _own(self, settings: Settings) -> Iterator[httpx2.Client]:
        """Start the service for this command alone."""
        at = f"http://{settings.host}:{settings.port}"
        other = answers_at(local_url(at))
        hint = "Run `anchorage serve` to avoid the wait."
        if other:
            hint = f"The one there uses another data folder: pass --url {local_url(at)} to use it."
        what = f"No service runs at {at}" if not other else f"No service uses {settings.data_dir}"
        typer.echo(f"{what}; this command starts its own. {hint}", err=True)
        changes = {"auth": "keys"} if self._key else {}
        own = settings.model_copy(update={**changes, **self.own_settings})
        with ExitStack() as opened:
            with explain_faults():
                announce = opened.enter_context(lock_data_dir(settings))
            from app.cli.own_service import run  # it loads torch, for which others wait

            address = opened.enter_context(run(own, announce))
            yield opened.enter_context(self._client(address))

    def _silence(self, error: httpx2.TransportError) -> str:
        if self.url is None:
            return "The service of another command ended with it. Run the command again."
        start = "Start it with `anchorage serve`, or correct --url."
        return f"No service answers at {self.url}: {error or type(error).__name__}. {start}"


def at(*parts: str) -> str:
    """Return the path of a resource, whose name may be any text."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def answers_at(url: str) -> bool:
    """Return whether an Anchorage service answers."""
    _keep_quiet()
    try:
        with httpx2.Client(timeout=1.0, trust_env=False) as http:
            return "version" in http.get(f"{url}/livez").json()
    except (httpx2.HTTPError, ValueError, TypeError):
        return False


def _keep_quiet() -> None:
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _announced(settings: Settings) -> str | None:
    """Return where the service of the data folder listens; None if no process uses the folder.

    Raises typer.BadParameter for a process that does not say it.
    """
    until = time.monotonic() + ANNOUNCE_S
    while (address := service_of(settings)) == "":
        if time.monotonic() > until:
            raise typer.BadParameter(f"another process uses the data folder {settings.data_dir}")
        time.sleep(LOOK_S)
    return address


def _problem(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = answer.json()
        if "error" in found:  # below /v1
            return {**found["error"], "detail": str(found["error"]["message"])}
        if isinstance(found["detail"], str):
            return dict(found)
    except (KeyError, TypeError, ValueError):
        pass
    place = f"{answer.request.method} {answer.request.url}"
    return {"detail": f"{place} answered {answer.status_code}. Is it an Anchorage service?"}


def uses_service(command: Callable[Concatenate[Service, ...], object]) -> Callable[..., None]:
    """Give a command the service as its first argument, and the options that name it."""
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    options = _options(own)

    @wraps(command)
    def run(*_: Any, url: str | None, api_key: str | None, **given: Any) -> None:
        service = Service(url, api_key)
        try:
            command(service, **given)
        except Refused as error:
            typer.secho(f"Error: {explain(error, options)}", fg="red", err=True)
            raise typer.Exit(REFUSED) from None
        finally:
            service.close()

    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, kind, default=None, annotation=annotation)
        for name, annotation in (("url", Url), ("api_key", ApiKey))
    ]
    parameters = [*(each.replace(kind=kind) for each in own), *added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def explain(error: Refused, options: dict[str, str]) -> str:
    """Return what is wrong and what to do, in the command's own options."""
    texts = [str(error.problem["detail"])]
    for name in ("hint", "did_you_mean"):
        more = error.problem.get(name)
        if more and str(more) not in texts[0]:
            texts.append(f"Did you mean {more}?" if name == "did_you_mean" else str(more))
    texts[-1] += name_rows(error.problem.get("rows") or [])
    if error.status == 401:
        texts.append("Pass --api-key, or set ANCHORAGE_API_KEY.")

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        flag = options.get(OPTION_OF.get(name, name)) or options.get(name)
        if flag is None:
            return found[0]
        return f"`{flag}`" if value in (None, "true") else f"`{flag} {value}`"

    return FIELD.sub(option, " ".join(texts))


def _options(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Return the options of a command by the names of its parameters."""
    found = {"text_field": "--text-field"}  # of another command, where this one has none
    for each in parameters:
        for info in get_args(each.annotation)[1:]:
            if isinstance(info, OptionInfo):
                names = [name for name in info.param_decls or () if name.startswith("-")]
                usual = f"--{each.name.replace('_', '-')}"
                found[each.name] = next(iter(names), usual)
    return found
