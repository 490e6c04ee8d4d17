"""/docs and /docs/errors: pages that load nothing from other hosts.

They run only their own scripts, and no other page can show them in a frame.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

STATIC = "/static-offline-docs"
FILES = Path(fastapi_offline.__file__).parent / "static"

#: The page with one section for each error code. The `type` of a problem document links to it.
ERRORS_PATH = "/docs/errors"

#: Public paths: they hold no data of a project.
PATHS = frozenset({"/", "/docs", "/openapi.json", ERRORS_PATH})

#: The policy of answers that are no pages, and the other headers of all answers.
DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"
SECURITY_HEADERS = ((b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"))

#: The page sets styles from scripts.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

#: The groups of calls, in the order in which a reader needs them, and their descriptions.
TAGS = {
    "Migrate": "Give every row of a store a vector of another encoder, and go back. Begin with "
    "`POST /migrations`, which plans and writes nothing.",
    "Search an old index": "Search vectors of an old encoder with the new one: in a store that "
    "the service reads (`POST /stores`, then `POST /stores/{name}/search`), or among candidates "
    "that you send (`POST /rescore`).",
    "Decide": "What to do with an index after a change of encoder, by estimate or on judged "
    "queries. Begin with `POST /advice`.",
    "Translate": "Vectors of one encoder in the space of another (`POST /translate`), relative "
    "vectors (`POST /relative`), and the fitted translators with their reports.",
    "Classify": "Classifiers and decoders that outlive their encoder. Register one with `POST "
    "/heads`, and apply it with `POST /stitch`.",
    "Anchors": "The items that two encoders share. Begin with `POST /anchor-sets`; without "
    "shared items, with `PUT /pools/{name}` and `POST /bootstrap`.",
    "Encoders": "Named functions from inputs to vectors. Begin with `POST /encoders`; an encoder "
    "that you run yourself needs its dimension only.",
    "OpenAI": "What clients of OpenAI, Cohere and Jina call. A `model` is an encoder, "
    "`encoder->target@anchor-set`, or a name.",
    "Jobs": "Work that outlives a request. Follow it with `GET /jobs/{id}`.",
    "Keys": "API keys, and the record of changes; for callers with the scope `admin`.",
    "Health": "What an orchestrator and Prometheus ask.",
}


#: in an installed package, and in a checkout
ERRORS_SOURCES = (
    Path(__file__).with_name("errors.md"),
    Path(__file__).parents[2] / "docs" / "reference" / "errors.md",
)

ERRORS_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Errors</title>
<meta name="viewport" content="width=device-width">
<style>body{max-width:46em;margin:2em auto;padding:0 1em;font:1em/1.5 system-ui,sans-serif}
:target{background:#ff9}td,th{text-align:left;vertical-align:top;padding-right:1em}</style></head>
"""


def install(app: FastAPI) -> None:
    """Adds the pages, their files, and a redirect from / to /docs."""
    app.mount(STATIC, StaticFiles(directory=FILES), name="static-offline-docs")

    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs")

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

    @app.get(ERRORS_PATH, include_in_schema=False)
    async def errors(request: Request) -> Response:
        return _guarded(HTMLResponse(errors_html()))


def _guarded(page: Response) -> Response:
    """The page, with a policy that allows its inline scripts by their hashes."""
    digests = [
        b64encode(hashlib.sha256(script).digest()).decode()
        for script in INLINE_SCRIPT.findall(bytes(page.body))
    ]
    page.headers["Content-Security-Policy"] = PAGE_POLICY.format(
        hashes=" ".join(f"'sha256-{digest}'" for digest in digests)
    )
    return page


@cache
def errors_html() -> str:
    """Returns the page of all error codes, without its links, whose pages are elsewhere."""
    from markdown_it import MarkdownIt

    source = next((path for path in ERRORS_SOURCES if path.exists()), ERRORS_SOURCES[0])
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", source.read_text())
    body = MarkdownIt("commonmark").enable("table").render(text)
    return f"{ERRORS_HEAD}<body>{re.sub('<h3>(.*?)</h3>', _with_anchor, body)}</body></html>"


def _with_anchor(heading: re.Match[str]) -> str:
    return f'<h3 id="{heading[1]}">{heading[1]}</h3>'
