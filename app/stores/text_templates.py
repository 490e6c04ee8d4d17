"""Texts of rows that are put together from several fields: `{title}: {body:2000}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from app.errors import InvalidRequest

#: most fields of a template, whose texts are read one after the other
MAX_FIELDS = 8


@dataclass(frozen=True)
class TextTemplate:
    """The parts of a template: a literal, the field after it, and its most characters, if any.

    The name of a field alone is a template of one part.
    """

    parts: Sequence[tuple[str, str | None, int | None]]

    @property
    def fields(self) -> list[str]:
        """The fields, each once."""
        return list(dict.fromkeys(name for _, name, _ in self.parts if name is not None))

    def fill(self, values: Mapping[str, str | None]) -> str | None:
        """Return the text of a row, in which a missing field is empty; None without any field."""
        if not any(values.values()):
            return None
        return "".join(
            literal + ((name and values[name]) or "")[:most] for literal, name, most in self.parts
        )


def parse_template(text: str) -> TextTemplate:
    """Return the template. Raises InvalidRequest."""
    if "{" not in text and "}" not in text:
        return TextTemplate([("", text, None)])
    parts = []
    try:
        for literal, name, size, conversion in Formatter().parse(text):
            if conversion or name == "" or (size and not re.fullmatch("[1-9][0-9]{0,5}", size)):
                raise ValueError
            parts.append((literal, name, int(size) if size else None))
    except ValueError:
        parts = []
    template = TextTemplate(parts)
    if not template.fields:
        raise InvalidRequest(
            "`text_field` is the name of a field, or a template such as `{title}: {body:2000}`, "
            "with a number of characters after a colon. Correct the braces.",
            field="text_field",
        )
    if len(template.fields) > MAX_FIELDS:
        raise InvalidRequest(
            f"`text_field` names {len(template.fields)} fields; at most {MAX_FIELDS} are allowed.",
            field="text_field",
        )
    return template
