"""Renders the templates, and problems as pages."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import __version__
from app.console import formats, wording
from app.http.admission import ASSETS, CONSOLE, COOKIE, SIGN_IN, is_console

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(formats.FILTERS, in_own_words=wording.in_own_words)

#: the addresses that a command tries without `--url`
COMMANDS_URLS = ("http://127.0.0.1:8080", "http://localhost:8080")


def base_of(request: Request) -> str:
    """Returns the prefix of all paths, which a proxy may have set."""
    base: str = request.scope.get("root_path", "")
    return base


def is_fragment(request: Request) -> bool:
    """Whether a script of a page asks for a part of it."""
    return "hx-request" in request.headers


def render(
    request: Request,
    template: str,
    *,
    status: int = HTTPStatus.OK,
    **values: Any,
) -> HTMLResponse:
    """Returns a page that no cache keeps. Raises TemplateNotFound, UndefinedError."""
    base = base_of(request)
    url = str(request.base_url).rstrip("/")
    html = TEMPLATES.get_template(template).render(
        base=base,
        assets=f"{base}{ASSETS}",
        caller=getattr(request.state, "context", None),
        needs_key=request.app.state.keys is not None,
        version=__version__,
        url=url,
        at_url="" if url in COMMANDS_URLS else f" --url {url}",
        **values,
    )
    return HTMLResponse(html, status, {"Cache-Control": "no-store"})


def redirect(request: Request, path: str) -> Response:
    """Returns a redirect to a page of the console, for a page or for a part of one."""
    url = f"{base_of(request)}{path}"
    headers = {"Cache-Control": "no-store"}
    if is_fragment(request):
        return Response(status_code=HTTPStatus.OK, headers={**headers, "HX-Redirect": url})
    return RedirectResponse(url, HTTPStatus.SEE_OTHER, headers)


def problem_page(request: Request, problem: dict[str, Any]) -> Response | None:
    """Returns a problem below /console as a page; None below other paths."""
    path: str = request.scope["path"]
    if not is_console(path):
        return None
    if path == SIGN_IN:
        return render(
            request,
            "sign_in.html",
            status=problem["status"],
            message=problem["detail"],
            next=getattr(request.state, "next_page", ""),
        )
    if problem["status"] == HTTPStatus.UNAUTHORIZED:
        return _sign_in_again(request)
    is_part = is_fragment(request)
    again = f"{request.url.path}?{request.url.query}"
    store, _, step = path.removeprefix(f"{CONSOLE}/stores/").partition("/")
    return render(
        request,
        "problem_part.html" if is_part else "problem.html",
        status=problem["status"],
        problem=problem,
        retry=again if is_part and request.method == "GET" else None,
        store=store if step else None,
    )


def _sign_in_again(request: Request) -> Response:
    """Returns a redirect to the form for the key, which forgets a key that does not work."""
    ended = COOKIE in request.cookies
    wanted = "" if is_fragment(request) else f"&next={quote(request.scope['path'])}"
    response = redirect(request, f"{SIGN_IN}?ended={int(ended)}{wanted}")
    if ended:
        response.delete_cookie(COOKIE, path=f"{base_of(request)}{CONSOLE}")
    return response
