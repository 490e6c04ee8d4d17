"""Model ids of the compatible protocols: a name, or `encoder->target@anchor-set`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import EncoderNotFound, InvalidHead, NotFound
from app.services.context import Services
from app.services.encoders import encoding
from app.services.translators import translators
from app.storage import tables
from app.storage.queries import resources

_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MODEL_ID_PATTERN = re.compile(
    rf"(?P<encoder>{_NAME_PATTERN})(->(?P<target>{_NAME_PATTERN})@(?P<anchor_set>{_NAME_PATTERN}))?"
)


@dataclass(frozen=True)
class ModelId:
    """A parsed model id. `target` and `anchor_set` are None for an encoder's own vectors.

    In /v2 the target is a head, and an id without one is a head's name.
    """

    encoder: str
    target: str | None
    anchor_set: str | None

    @property
    def head(self) -> str:
        """The name of the head, if the model is one."""
        return self.target or self.encoder

    def translator_request(self) -> translators.FitRequest | None:
        """The translation that the id names, or None."""
        if self.target is None or self.anchor_set is None:
            return None
        return translators.FitRequest(self.encoder, self.target, self.anchor_set, "auto", {})


def parse_model(
    text: str,
    error: type[NotFound] = EncoderNotFound,
    detail: str = "There is no model {!r}. A model is `encoder`, `encoder->target@anchor-set` or "
    "an alias; /v1/models lists them.",
) -> ModelId:
    """The parts of a model id. Raises `error`, with `detail`, if the text is not one."""
    match = MODEL_ID_PATTERN.fullmatch(text)
    if match is None:
        raise error(detail.format(text[:200]), field="model")
    return ModelId(**match.groupdict())


def is_name(text: str) -> bool:
    """Whether a model id is a plain name, which may be that of an alias."""
    match = MODEL_ID_PATTERN.fullmatch(text)
    return match is not None and match["target"] is None


def find_encoder(services: Services, project: str, name: str) -> tables.EncoderRow:
    """The encoder of a model id. Raises EncoderNotFound."""
    with services.db.transaction() as session:
        return resources.by_name(session, tables.EncoderRow, project, name, field="model")


def find_embedding_model(
    services: Services, project: str, model_id: ModelId
) -> tuple[tables.EncoderRow, tables.SpaceRow | None]:
    """The encoder of a model, and the space that its vectors are translated into, or None.

    Raises EncoderNotFound, EncoderNeedsVectors, AnchorSetNotFound, AnchorsNotEmbedded.
    """
    row = find_encoder(services, project, model_id.encoder)
    encoding.spec_of(row)
    request = model_id.translator_request()
    return row, None if request is None else translators.find_pair(services, project, request)[1]


def find_head_space(
    services: Services,
    project: str,
    row: tables.HeadRow,
    encoder: str | None,
    anchor_set: str | None,
) -> tables.SpaceRow | None:
    """The space of the vectors that a head is applied to, or None if it is the head's own.

    Raises what the application would raise: the not-found errors, AnchorsNotEmbedded, InvalidHead.
    """
    if encoder is None or anchor_set is None:
        return None
    if row.encoder is not None:
        request = translators.FitRequest(encoder, row.encoder.name, anchor_set, "auto", {})
        return translators.find_pair(services, project, request)[0]
    assert row.anchor_set is not None
    if anchor_set != row.anchor_set.name:
        raise InvalidHead(
            f"Head {row.name!r} belongs to anchor set {row.anchor_set.name!r}. Name that one.",
            field="anchor_set",
        )
    with services.db.transaction() as session:
        return translators.find_space_row(session, project, anchor_set, encoder, "encoder")
