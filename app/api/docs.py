"""/docs and /redoc: pages of files of this machine, which run no script but their own and stand in no other page's frame."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.staticfiles import StaticFiles

STATIC = "/static-offline-docs"
FILES = Path(fastapi_offline.__file__).parent / "static"

#: answered to everyone: they say nothing about anyone's data
PATHS = frozenset({"/docs", "/redoc", "/openapi.json"})

#: what a browser may do with an answer of these paths that is no page, and with any of them
CLOSED = "default-src 'none'; frame-ancestors 'none'"
HEADERS = ((b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"))

#: both pages set styles by scripts; ReDoc searches in a worker that it makes itself
POLICY = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def is_public(path: str) -> bool:
    """Whether a path belongs to the documentation."""
    return path in PATHS or path.startswith(f"{STATIC}/")


def install(app: FastAPI) -> None:
    """Add the pages and their files."""
    app.mount(STATIC, StaticFiles(directory=FILES), name="static-offline-docs")

    @app.get("/docs", include_in_schema=False)
    async def swagger(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return _guarded(
            get_swagger_ui_html(
                openapi_url=f"{root}/openapi.json",
                title=f"{app.title} - Swagger UI",
                swagger_js_url=f"{root}{STATIC}/swagger-ui-bundle.js",
                swagger_css_url=f"{root}{STATIC}/swagger-ui.css",
                swagger_favicon_url=f"{root}{STATIC}/favicon.png",
            )
        )

    @app.get("/redoc", include_in_schema=False)
    async def redoc(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return _guarded(
            get_redoc_html(
                openapi_url=f"{root}/openapi.json",
                title=f"{app.title} - ReDoc",
                redoc_js_url=f"{root}{STATIC}/redoc.standalone.js",
                redoc_favicon_url=f"{root}{STATIC}/favicon.png",
                with_google_fonts=False,
            )
        )


def _guarded(page: Response) -> Response:
    """The page, with a policy that names its own scripts by their hashes."""
    digests = [
        b64encode(hashlib.sha256(script).digest()).decode()
        for script in INLINE.findall(bytes(page.body))
    ]
    page.headers["Content-Security-Policy"] = POLICY.format(
        hashes=" ".join(f"'sha256-{digest}'" for digest in digests)
    )
    return page
