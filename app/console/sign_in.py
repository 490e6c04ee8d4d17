"""Sign in with an API key, and sign out."""

from __future__ import annotations

import re
from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from app.console.forms import Form, text_of
from app.console.pages import base_of, redirect, render
from app.http.admission import CONSOLE, COOKIE, SIGN_IN

router = APIRouter()

SIGN_OUT = f"{CONSOLE}/sign-out"

#: pages to which a sign-in may lead
OWN_PAGE = re.compile(r"/console(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)*")


@router.get(SIGN_IN)
async def show_sign_in(request: Request, ended: bool = False, next: str = "") -> Response:
    """Shows the form for the key. Without keys, redirects to the stores."""
    if request.app.state.keys is None:
        return redirect(request, CONSOLE)
    message = "You are signed out: the key no longer works." if ended else ""
    return render(request, "sign_in.html", message=message, next=_own(next))


@router.post(SIGN_IN)
async def sign_in(request: Request, form: Form) -> Response:
    """Puts a key that works into the cookie. Raises Unauthenticated."""
    if request.app.state.keys is None:
        return redirect(request, CONSOLE)
    key = text_of(form, "key")
    request.state.next_page = _own(text_of(form, "next"))  # the form keeps it after a wrong key
    await request.app.state.admission.find_caller(key)
    response = redirect(request, request.state.next_page or CONSOLE)
    response.set_cookie(
        COOKIE,
        key,
        path=f"{base_of(request)}{CONSOLE}",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post(SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """Deletes the cookie. The key keeps working elsewhere."""
    response = redirect(request, SIGN_IN)
    response.delete_cookie(COOKIE, path=f"{base_of(request)}{CONSOLE}")
    response.status_code = HTTPStatus.SEE_OTHER
    return response


def _own(path: str) -> str:
    """Returns the path if it is a page of the console, otherwise an empty text."""
    return path if OWN_PAGE.fullmatch(path) else ""
