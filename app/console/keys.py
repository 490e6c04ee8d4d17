"""/console/keys: API keys, for keys with the scope admin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.http.admission import CONSOLE
from app.api.http.deps import AdminContext, Reads, Svc
from app.api.resources.api_keys import ApiKey, KeyId
from app.console.forms import Form, text_of
from app.console.pages import render
from app.errors import InvalidRequest
from app.services.access import api_keys
from app.services.context import Services
from app.storage.queries import access
from app.storage.tables import now
from app.types import Scope

router = APIRouter()

KEYS_PAGE = f"{CONSOLE}/keys"

#: choices of the forms: days until a new key expires, and seconds that a rotated key still works
EXPIRES_AFTER_DAYS = (7, 30, 90, 365)
GRACE_CHOICES = {0: "at once", 3_600: "in an hour", 86_400: "in a day", 604_800: "in a week"}


@router.get(KEYS_PAGE)
def show_keys(request: Request, services: Svc, project: Reads) -> Response:
    """Shows the keys of the project; without the scope admin, the caller's key alone."""
    if not request.state.caller.may(Scope.admin):
        return show_refusal(request, services, project, "Keys")
    return render(request, "keys.html", **_keys(services, project))


def show_refusal(request: Request, services: Services, project: str, title: str) -> Response:
    """Says that a page needs the scope admin, and shows the caller's key."""
    with services.db.transaction() as session:
        own = access.api_key(session, project, request.state.caller.key_id)
    return render(request, "keys_refused.html", own=ApiKey.model_validate(own), title=title)


@router.post(KEYS_PAGE)
def create_key(request: Request, services: Svc, context: AdminContext, form: Form) -> Response:
    """Creates a key and shows its secret once. Raises InvalidRequest."""
    days = text_of(form, "expires")
    if days and days not in map(str, EXPIRES_AFTER_DAYS):
        raise InvalidRequest("Choose one of the listed times.", field="expires")
    scope = text_of(form, "scope")
    if scope not in [each.value for each in Scope]:
        raise InvalidRequest("Choose `read`, `write` or `admin`.", field="scope")
    row, secret = api_keys.create_key(
        services,
        context,
        name=text_of(form, "name"),
        scopes=[Scope(scope)],
        expires_at=now() + timedelta(days=int(days)) if days else None,
        rate_limit=text_of(form, "rate_limit") or None,
    )
    return _show_changed(request, services, context.project, secret, row.name)


@router.post(f"{KEYS_PAGE}/{{id}}/rotate")
def rotate_key(
    request: Request, id: KeyId, services: Svc, context: AdminContext, form: Form
) -> Response:
    """Replaces a key and shows the new secret once. Raises as `api_keys.rotate_key`."""
    grace = text_of(form, "grace") or "0"
    if grace not in map(str, GRACE_CHOICES):
        raise InvalidRequest("Choose one of the listed times.", field="grace")
    row, secret = api_keys.rotate_key(services, context, id, grace_s=int(grace))
    _forget(request, id)
    return _show_changed(request, services, context.project, secret, row.name)


@router.post(f"{KEYS_PAGE}/{{id}}/revoke")
def revoke_key(request: Request, id: KeyId, services: Svc, context: AdminContext) -> Response:
    """Ends a key: at once in this process, and within 2 seconds in others."""
    api_keys.revoke_key(services, context, id)
    _forget(request, id)
    return _show_changed(request, services, context.project)


def _show_changed(
    request: Request, services: Services, project: str, secret: str | None = None, name: str = ""
) -> Response:
    """Shows the keys after a change, and the secret of a new key."""
    return render(request, "keys_live.html", **_keys(services, project, secret), name=name)


def _keys(services: Services, project: str, secret: str | None = None) -> dict[str, Any]:
    with services.db.transaction() as session:
        keys = [ApiKey.model_validate(row) for row in access.api_keys(session, project)]
    return {
        "keys": list(reversed(keys)),
        "moment_now": now(),
        "secret": secret,
        "expiries": EXPIRES_AFTER_DAYS,
        "graces": GRACE_CHOICES,
    }


def _forget(request: Request, key_id: str) -> None:
    """Makes this process look the key up again."""
    key_ring = request.app.state.admission.keys
    if key_ring is not None:
        key_ring.forget(key_id)
