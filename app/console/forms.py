"""Reads the forms of the pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from app.errors import Malformed, UnsupportedMedia
from app.http.bodies import media_of, read_whole

#: most bytes of a form
MAX_FORM_BYTES = 256 * 1024

#: most fields of a form
MAX_FORM_FIELDS = 100


async def _form(request: Request) -> dict[str, list[str]]:
    """Returns the values of each field. Raises UnsupportedMedia, Malformed, and as `read_whole`."""
    if media_of(request) != "application/x-www-form-urlencoded":
        raise UnsupportedMedia(
            "This page reads `application/x-www-form-urlencoded`. Use the forms of the console.",
            field="Content-Type",
        )
    data = bytes(await read_whole(request, MAX_FORM_BYTES))
    fields: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(
            data.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS
        ):
            fields.setdefault(name, []).append(value)
    except ValueError:
        raise Malformed("The form does not parse. Use the forms of the console.") from None
    return fields


Form = Annotated[dict[str, list[str]], Depends(_form)]


def text_of(form: dict[str, list[str]], field: str) -> str:
    """Returns the first value of a field without spaces around it; empty without the field."""
    return form.get(field, [""])[0].strip()
