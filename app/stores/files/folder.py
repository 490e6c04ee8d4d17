"""The folder of a file store: paths that cannot leave it, and small files that appear at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from app.errors import InvalidRequest, StoreChanged, StoreUnsupported
from app.stores.files.faults import file_faults

#: file systems whose files appear whole under their name, by a rename or by one request
WHOLE_FILES = frozenset({"file", "local", "memory", "s3", "s3a", "gs", "gcs", "abfs", "az", "adl"})

#: facts about a file that change when it is written
FINGERPRINT_FACTS = ("size", "mtime", "ino", "ETag", "etag", "md5Hash", "LastModified", "created")


class VectorFolder:
    """A folder or URL prefix. Names are relative to it, with `/` between parts."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0].rpartition("::")[2] if "://" in url else "file"
        if scheme not in fsspec.available_protocols():
            raise StoreUnsupported(
                "The address is no folder and no URL of files. Name another address, or the "
                "`kind` of store that lies there.",
                field="address",
            )
        with file_faults("the address"):
            self.fs, root = fsspec.core.url_to_fs(url)
        self.root = str(root).rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)
        protocol = self.fs.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self.whole_files = bool(names & WHOLE_FILES)

    def path(self, name: str) -> str:
        """Return the path of a name. Raises InvalidRequest if it leaves the folder."""
        path = f"{self.root}/{checked_path(name)}"
        if self.local:
            root, real = os.path.realpath(self.root), os.path.realpath(path)
            if os.path.commonpath([root, real]) != root or real == root:
                raise InvalidRequest(
                    f"{name!r} is a link that leaves the address. Name a file of the address.",
                    field="collection",
                )
        return path

    def exists(self, name: str) -> bool:
        with file_faults(name):
            return bool(self.fs.exists(self.path(name)))

    def fingerprint(self, name: str) -> str:
        """Return what changes when the file is written. Raises StoreChanged if there is none."""
        with file_faults(name):
            self.fs.invalidate_cache()
            facts = self.fs.info(self.path(name))
        if facts.get("type") != "file":
            raise StoreChanged(f"{name!r} is not a file. Name one file in `collection`.")
        return json.dumps([str(facts.get(fact)) for fact in FINGERPRINT_FACTS])

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a small file; None if there is none."""
        with file_faults(name):
            path = self.path(name)
            try:
                value = json.loads(self.fs.cat_file(path))
            except FileNotFoundError:
                return None
        if not isinstance(value, dict):
            raise StoreChanged(f"{name!r} is not a JSON object. Restore or delete it.")
        return value

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_whole(name, (json.dumps(value, indent=1) + "\n").encode())

    def write_whole(self, name: str, content: bytes | memoryview) -> None:
        """Write a file that no reader sees in part, where the file system can do that."""
        with file_faults(name):
            path = self.path(name)
            if not self.local:
                self.fs.pipe_file(path, bytes(content))
                return
            part = Path(f"{path}.writing")
            try:
                with part.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise

    def make(self, name: str) -> None:
        with file_faults(name):
            self.fs.makedirs(self.path(name), exist_ok=True)

    def list(self, name: str) -> list[str]:
        """Return the names of files directly in a folder, in order."""
        with file_faults(name):
            path = self.path(name)
            if not self.fs.exists(path):
                return []
            self.fs.invalidate_cache()
            return sorted(str(each).rpartition("/")[2] for each in self.fs.ls(path, detail=False))

    def delete(self, name: str, *, folder: bool = False) -> None:
        """Delete a file or folder if it exists."""
        with file_faults(name):
            path = self.path(name)
            if self.fs.exists(path):
                self.fs.rm(path, recursive=folder)


def checked_path(name: str) -> str:
    """Return a relative path. Raises InvalidRequest for one that could leave the address."""
    parts = name.split("/")
    bad = "\\" in name or "\0" in name or "::" in name or re.match(r"[A-Za-z][\w+.-]*:", name)
    if bad or any(part in ("", ".", "..") for part in parts) or name.startswith("~"):
        raise InvalidRequest(
            f"{name!r} is not a path below the address. Send a relative path with `/` between its "
            "parts, without `..`, `//` and schemes.",
            field="collection",
        )
    return name
