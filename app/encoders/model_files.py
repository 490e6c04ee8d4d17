"""Where a model's files are: the operator's folder, an installed package, or a hub that the operator allows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from app.encoders.base import Shelf, Spec
from app.errors import EncoderUnavailable

#: what is fetched from a hub: weights that hold no code, and what describes them
FETCHED = ("*.safetensors", "*.json", "*.txt", "*.model")

_HUB_ID = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?", re.ASCII)
_HUB_REVISION = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})*", re.ASCII)


def find(
    spec: Spec, shelf: Shelf, *, packaged: Path | None = None, pairs: bool = False
) -> tuple[Path, str]:
    """(path, revision) of a model's files; a folder wins over a package, a package over the hub. Raises EncoderUnavailable.

    path       a folder, or with `pairs` the file NAME.safetensors that stands beside NAME.json
    revision   digest of the files, or the hub's commit; where `spec` names a revision, it is that one
    packaged   the folder of an installed package that carries this model
    """
    place = inside(shelf.folder, spec.model)
    if place is not None and place.is_dir():
        _require_size(spec, shelf, [*place.rglob("*.safetensors")])
        return place, _pinned(spec, place, _own_files(spec, place, shelf.folder))
    weights, described = (
        inside(shelf.folder, spec.model + suffix) if pairs else None
        for suffix in (".safetensors", ".json")
    )
    if weights is not None and described is not None:
        _require_size(spec, shelf, [weights])
        return weights, _pinned(spec, weights.parent, [weights, described])
    if packaged is not None and packaged.is_dir():
        return packaged, _pinned(spec, packaged, _files(packaged))
    if any(fnmatchcase(spec.model, pattern) for pattern in shelf.hub):
        return _fetch(spec)
    raise EncoderUnavailable(
        f"model {spec.model!r} is not on this server, and the server may not fetch it: put it below ANCHORAGE_MODELS_DIR, "
        "or allow its hub id in ANCHORAGE_HUB_MODELS",
        field="model",
    )


def _require_size(spec: Spec, shelf: Shelf, weights: Sequence[Path]) -> None:
    """Before anything is read. Raises EncoderUnavailable."""
    size = sum(path.stat().st_size for path in weights if path.is_file())
    if shelf.largest is not None and size > shelf.largest:
        raise EncoderUnavailable(
            f"the weights of model {spec.model!r} take {size} bytes, and the server keeps {shelf.largest} of models: see "
            "ANCHORAGE_MODEL_BYTES",
            field="model",
        )


def inside(folder: Path | None, name: str) -> Path | None:
    """Where `name` is in `folder`, links followed: None when it is not there, or not below `folder`."""
    plain = PurePosixPath(name)
    if folder is None or "\0" in name or plain.is_absolute() or ".." in plain.parts:
        return None
    try:
        root, path = folder.resolve(), (folder / plain).resolve()
        return path if path != root and path.is_relative_to(root) and path.exists() else None
    except (
        OSError,
        RuntimeError,
    ):  # a name too long, links in a circle, a folder one may not enter
        return None


def _files(folder: Path) -> list[Path]:
    """Every file a model may be read from: neither hidden nor meant for people."""
    paths = [
        path
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    return [
        path
        for path in paths
        if path.suffix != ".md" and not (path.is_dir() and not path.is_symlink())
    ]


def _own_files(spec: Spec, folder: Path, root: Path | None) -> list[Path]:
    """The files of an operator's folder. A link is fine while it leads to a file below `root`."""
    files = _files(folder)
    assert root is not None
    for path in files:
        target = path.resolve()
        if not target.is_relative_to(root.resolve()) or not target.is_file():
            raise EncoderUnavailable(
                f"the folder of model {spec.model!r} holds {path.name!r}, which is no file below ANCHORAGE_MODELS_DIR",
                field="model",
            )
    return files


def _pinned(spec: Spec, folder: Path, files: Sequence[Path]) -> str:
    """The files' digest. Raises EncoderUnavailable when `spec` asks for another."""
    try:
        revision = digest(files, folder)
    except OSError as error:
        raise EncoderUnavailable(
            f"the files of model {spec.model!r} cannot be read", field="model"
        ) from error
    if spec.revision not in (None, revision):
        raise EncoderUnavailable(
            f"model {spec.model!r} has revision {revision} on this server, not {spec.revision!r}",
            field="revision",
        )
    return revision


def digest(files: Sequence[Path], folder: Path) -> str:
    """SHA-256 of names and contents, in the order of names."""
    whole = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(
            f"{path.relative_to(folder).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape")
        )
    return whole.hexdigest()


def _fetch(spec: Spec) -> tuple[Path, str]:
    """Fetch into the hub's cache, or find there what was fetched before: enough when HF_HUB_OFFLINE is set."""
    if not _HUB_ID.fullmatch(spec.model) or ".." in spec.model:
        raise EncoderUnavailable(f"{spec.model!r} is no model's name", field="model")
    if spec.revision is not None and (
        not _HUB_REVISION.fullmatch(spec.revision) or ".." in spec.revision
    ):
        raise EncoderUnavailable(f"{spec.revision!r} is no revision's name", field="revision")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()  # a server's log is no terminal
        path = Path(
            snapshot_download(spec.model, revision=spec.revision, allow_patterns=list(FETCHED))
        )
    except (
        Exception
    ) as error:  # the hub's client, its cache and the network have many errors of their own
        raise EncoderUnavailable(
            f"model {spec.model!r} cannot be fetched from the hub ({type(error).__name__}; the server's log has the reason): "
            "put it below ANCHORAGE_MODELS_DIR",
            field="model",
        ) from error
    return path, path.name  # the cache names a snapshot's folder by its commit
