"""Model ids of the compatible protocols: a name, or `encoder->target@anchor-set`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import EncoderNotFound, NotFound
from app.services.translators import translators

_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MODEL_ID_PATTERN = re.compile(
    rf"(?P<encoder>{_NAME_PATTERN})"
    rf"(->(?P<target>{_NAME_PATTERN})@(?P<anchor_set>{_NAME_PATTERN}))?"
)


@dataclass(frozen=True)
class ModelId:
    """A parsed model id. `target` and `anchor_set` are None for an encoder's own vectors."""

    encoder: str
    target: str | None
    anchor_set: str | None

    def translator_request(self) -> translators.FitRequest | None:
        """The translation that the id names, or None."""
        if self.target is None or self.anchor_set is None:
            return None
        return translators.FitRequest(self.encoder, self.target, self.anchor_set, "auto", {})


def parse_model(
    text: str,
    error: type[NotFound] = EncoderNotFound,
    detail: str = "There is no model {!r}. A model is `encoder` or `encoder->target@anchor-set`; "
    "/v1/models lists them.",
) -> ModelId:
    """The parts of a model id. Raises `error`, with `detail`, if the text is not one."""
    match = MODEL_ID_PATTERN.fullmatch(text)
    if match is None:
        raise error(detail.format(text[:200]), field="model")
    return ModelId(**match.groupdict())
