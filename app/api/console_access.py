"""How browsers reach the console: its paths, its cookie, and the policy of its pages."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

CONSOLE = "/console"
SIGN_IN = f"{CONSOLE}/sign-in"
ASSETS = f"{CONSOLE}/static"

#: pages ask for these every few seconds
POLLED_PATH = re.compile(rf"{CONSOLE}/jobs(/[^/]+)?/live")

#: the cookie that holds the API key, which only requests below CONSOLE carry
COOKIE = "anchorage_key"

#: pages load only files of the service, and run no inline script and no inline style
CONSOLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def is_console(path: str) -> bool:
    """Whether the path is a page or a file of the console."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def needs_no_key(path: str) -> bool:
    """Whether the path of the console is the form for the key, or a file without data."""
    return path == SIGN_IN or path.startswith(f"{ASSETS}/")


def cookie_key(headers: Headers) -> str | None:
    """Returns the API key of the cookie; None without one."""
    # Python's own parser would drop the key behind another program's cookie.
    return cookie_parser(headers.get("cookie", "")).get(COOKIE) or None
