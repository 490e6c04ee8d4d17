"""Texts of rows that are put together from several fields: `{title}: {body:2000}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.errors import InvalidRequest

#: {field} or {field:most characters}
_PLACE = re.compile(r"\{([^{}:]+)(?::([1-9][0-9]{0,5}))?\}")

#: most fields of a template, whose texts are read one after the other
MAX_FIELDS = 8


@dataclass(frozen=True)
class TextTemplate:
    """The parts of a template: literals, and fields with their most characters."""

    literals: Sequence[str]
    places: Sequence[tuple[str, int | None]]

    @property
    def fields(self) -> list[str]:
        """The fields, each once."""
        return list(dict.fromkeys(name for name, _ in self.places))

    def fill(self, values: Mapping[str, str | None]) -> str | None:
        """Return the text of a row, in which a missing field is empty; None without any field."""
        if not any(values[name] for name in self.fields):
            return None
        parts = [(values[name] or "")[:most] for name, most in self.places]
        middle = (part + after for part, after in zip(parts, self.literals[1:], strict=True))
        return self.literals[0] + "".join(middle)


def parse_template(text: str) -> TextTemplate | None:
    """Return the template; None for the name of one field."""
    if "{" not in text and "}" not in text:
        return None
    found = list(_PLACE.finditer(text))
    literals = _PLACE.sub("\0", text).split("\0")
    places = [(each[1], None if each[2] is None else int(each[2])) for each in found]
    template = TextTemplate(literals, places)
    if not found or any("{" in each or "}" in each for each in literals):
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
