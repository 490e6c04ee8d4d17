"""Files and folders by a path or an fsspec URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs as arrow_fs

from app.errors import ConnectorMissing, InvalidRequest

#: the name of a folder of shards never ends so, that of a file does
PARQUET_SUFFIX = ".parquet"

#: the members of fsspec's description of a file that hold a hash of its content
HASHES = ("ETag", "etag", "md5Hash", "content_md5")

#: characters that make a path a pattern
WILDCARDS = "*?["


@dataclass(frozen=True)
class Place:
    """A path in a file system, as pyarrow opens it.

    url     what the user wrote; without a password it may be shown
    path    the path inside `system`, without a slash at its end
    remote  the fsspec file system of a URL; None for a local path
    """

    url: str = field(repr=False)
    path: str
    system: Any = field(repr=False, compare=False)
    remote: Any = field(default=None, repr=False, compare=False)

    def below(self, name: str) -> Place:
        """The file or folder `name` inside this folder."""
        return Place(self.url, f"{self.path}/{name}", self.system, self.remote)

    def beside(self, suffix: str) -> Place:
        """The file or folder whose name has `suffix` at its end."""
        return Place(self.url, self.path + suffix, self.system, self.remote)

    @property
    def info(self) -> Any:
        """Type and size as pyarrow reports them; the type of a missing file is NotFound."""
        return self.system.get_file_info(self.path)

    @property
    def stamp(self) -> str:
        """A text that differs after the file is written again: size, time and hash, if known."""
        info = self.info
        parts = [info.size, info.mtime_ns]
        if self.remote is not None:
            about = self.remote.info(self.path)
            parts += [about[name] for name in HASHES if about.get(name)][:1]
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def is_file(self) -> bool:
        return bool(self.info.type == arrow_fs.FileType.File)

    @property
    def is_folder(self) -> bool:
        return bool(self.info.type == arrow_fs.FileType.Directory)

    def files(self) -> list[str]:
        """Paths of all files below this folder, relative to it and sorted; none if it is missing"""
        selector = arrow_fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        found = self.system.get_file_info(selector)
        return sorted(
            _relative(each.path, self.path) for each in found if each.type == arrow_fs.FileType.File
        )

    def read(self) -> bytes:
        with self.system.open_input_stream(self.path) as stream:
            return bytes(stream.read())

    def write(self, data: bytes) -> None:
        """Write a file under another name, then rename it."""
        partial = self.beside(".partial")
        with partial.system.open_output_stream(partial.path) as stream:
            stream.write(data)
        self.system.move(partial.path, self.path)

    def delete(self) -> None:
        """Delete a file, if it exists."""
        if self.is_file:
            self.system.delete_file(self.path)


def open_place(url: str) -> Place:
    """Return the place of a local path or an fsspec URL. Raises ConnectorMissing, InvalidRequest"""
    if "://" not in url or url.startswith("file://"):
        path = str(Path(url.removeprefix("file://")).expanduser().absolute())
        return Place(url, path, arrow_fs.LocalFileSystem())
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise ConnectorMissing(
            f"A URL of `{scheme}` needs fsspec. Install the extra: "
            "pip install 'anchorage-server[files]'"
        ) from None
    try:
        remote, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidRequest(f"The URL of `{scheme}` cannot be opened: {error}") from None
    system = arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(remote))
    return Place(url, str(path).rstrip("/"), system, remote)


def find_inputs(place: Place) -> list[tuple[Place, str]]:
    """Return the Parquet files of a file, a folder or a pattern, each with its name in an output.

    Files whose names begin with `_` or `.` are left out of folders.
    """
    if any(each in place.path for each in WILDCARDS) and not place.is_file:
        base = _fixed_part(place.path)
        return _named(place, [_relative(path, base) for path in _matches(place)], base)
    if place.is_folder:
        return _named(place, [name for name in place.files() if _counts(name)], place.path)
    if place.is_file:
        folder, _, name = place.path.rpartition("/")
        return _named(place, [name], folder)
    raise InvalidRequest(f"There is no file or folder {place.path}.")


def _named(place: Place, names: Sequence[str], base: str) -> list[tuple[Place, str]]:
    if not names:
        raise InvalidRequest(f"No Parquet file (*{PARQUET_SUFFIX}) is in {place.path}.")
    return [
        (Place(place.url, f"{base}/{name}", place.system, place.remote), name)
        for name in sorted(names)
    ]


def _matches(place: Place) -> list[str]:
    if place.remote is not None:
        return [str(path) for path in place.remote.glob(place.path)]
    return [str(path) for path in Path("/").glob(place.path.lstrip("/")) if path.is_file()]


def _fixed_part(pattern: str) -> str:
    """The folders of a pattern before its first wildcard."""
    first = min(pattern.index(each) for each in WILDCARDS if each in pattern)
    return pattern[:first].rpartition("/")[0]


def _counts(name: str) -> bool:
    return name.endswith(PARQUET_SUFFIX) and not any(
        part.startswith(("_", ".")) for part in name.split("/")
    )


def _relative(path: str, base: str) -> str:
    return path.removeprefix(base).lstrip("/")
