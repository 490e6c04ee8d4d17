"""The console's own scripts, style sheet and mark, with a hash of the content in their URLs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.errors import NotFound
from app.http.admission import ASSETS

router = APIRouter()

FOLDER = Path(__file__).with_name("static")

MEDIA_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

#: a URL with the hash of the content never changes what it answers
UNCHANGING = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """One file of the folder `static`."""

    content: bytes
    media_type: str
    digest: str


@cache
def find_assets() -> dict[str, Asset]:
    """Returns all files by name."""
    return {
        path.name: Asset(
            path.read_bytes(),
            MEDIA_TYPES[path.suffix],
            hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        )
        for path in sorted(FOLDER.iterdir())
    }


def asset_url(base: str, name: str) -> str:
    """Returns the URL of a file, with the hash of its content. Raises KeyError."""
    return f"{base}{ASSETS}/{name}?v={find_assets()[name].digest}"


@router.get(f"{ASSETS}/{{name}}")
async def get_asset(name: str, request: Request) -> Response:
    """Returns a file, which the browser keeps for a year if the URL has its hash."""
    asset = find_assets().get(name)
    if asset is None:
        raise NotFound(f"The console has no file {name[:100]!r}.")
    kept = request.query_params.get("v") == asset.digest
    return Response(
        asset.content,
        media_type=asset.media_type,
        headers={"Cache-Control": UNCHANGING if kept else "no-cache"},
    )
