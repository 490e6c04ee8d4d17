"""Finds a model's files: in the operator's folder, an installed package, or an allowed hub."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from app.encoders.models.base import EncoderSpec, ModelSources
from app.errors import EncoderUnavailable, did_you_mean

#: files to download from a hub: weights without code, and their descriptions
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")


def find_model(
    spec: EncoderSpec,
    sources: ModelSources,
    known: Iterable[str] = (),
    *,
    packaged: Path | None = None,
) -> tuple[Path, str]:
    """Return (folder, revision) of a model's files. Raises EncoderUnavailable.

    Searches the operator's folder first, then the package, then the hub.

    revision   digest of the files, or the hub's commit; the one that `spec` names, if it names one
    known      names of models in installed packages
    packaged   folder of an installed package that contains this model
    """
    path = find_folder(sources.folder, spec.model) or packaged
    if path is not None:
        _require_size(spec, sources, [*path.rglob("*.safetensors")])
        return path, _require_revision(spec, path)
    if any(fnmatchcase(spec.model, pattern) for pattern in sources.hub):
        return _download(spec)
    root = sources.folder or Path(os.devnull)
    found = [each.parent for each in (*root.glob("*/config*.json"), *root.glob("*/*/modules.json"))]
    names = {*known, *(each.relative_to(root).as_posix() for each in found)}
    raise EncoderUnavailable(
        f"Model {spec.model!r} is not installed where models run, and may not be downloaded."
        f"{did_you_mean(spec.model, names)} Start the service with its folder below "
        "ANCHORAGE_MODELS_DIR, or its hub id in ANCHORAGE_HUB_MODELS. For an API, POST /encoders "
        "with `kind: openai` and `options.url`.",
        field="model",
    )


def _require_size(spec: EncoderSpec, sources: ModelSources, weights: Sequence[Path]) -> None:
    """Raises EncoderUnavailable before the weights are read."""
    size = sum(path.stat().st_size for path in weights if path.is_file())
    if sources.largest is not None and size > sources.largest:
        raise EncoderUnavailable(
            f"The weights of model {spec.model!r} have {size} bytes; the limit is "
            f"{sources.largest}. Ask the operator to raise ANCHORAGE_MODEL_BYTES.",
            field="model",
        )


def find_folder(root: Path | None, name: str) -> Path | None:
    """Return the folder `name` in `root`, with links resolved; None if it is missing or outside
    `root`.
    """
    if root is None:
        return None
    try:
        root, path = root.resolve(), (root / name).resolve()
        return path if path != root and path.is_relative_to(root) and path.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # a long name, a cycle of links, or a NUL
        return None


def _require_revision(spec: EncoderSpec, folder: Path) -> str:
    """Return the files' digest. Raises EncoderUnavailable when `spec` names another revision."""
    try:
        revision = hash_folder(folder)
    except OSError as error:
        raise EncoderUnavailable(
            f"The files of model {spec.model!r} cannot be read. Ask the operator to check them.",
            field="model",
        ) from error
    if spec.revision not in (None, revision):
        raise EncoderUnavailable(
            f"Model {spec.model!r} is installed in revision {revision}, not "
            f"{spec.revision!r}. Send that revision, or remove `revision`.",
            field="revision",
        )
    return revision


def hash_folder(folder: Path) -> str:
    """Return the SHA-256 digest of all names and contents, sorted by name, without hidden files and
    Markdown.
    """
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_folder = path.is_dir() and not path.is_symlink()  # a link to one cannot be read below
        if is_folder or path.suffix == ".md" or any(part[0] == "." for part in name.parts):
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name.as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _download(spec: EncoderSpec) -> tuple[Path, str]:
    """Return the snapshot and its commit: from the hub's cache, or downloaded into it.

    With HF_HUB_OFFLINE the cache must have it.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if ".." in spec.model or ".." in (spec.revision or ""):
            raise ValueError("a name that leaves the cache")
        disable_progress_bars()  # they would fill the log
        path = Path(
            snapshot_download(spec.model, revision=spec.revision, allow_patterns=list(HUB_FILES))
        )
    except Exception as error:  # the hub's client, its cache and the network raise many types
        raise EncoderUnavailable(
            f"Model {spec.model!r} cannot be downloaded from the hub ({type(error).__name__}; the "
            "server's log has the reason). Ask the operator to put it below ANCHORAGE_MODELS_DIR.",
            field="model",
        ) from error
    return path, path.name  # the cache names a snapshot's folder after its commit
