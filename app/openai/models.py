"""Models of `/v1`: an encoder, `encoder->target@anchor-set`, or an alias of either."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.access.audit import record_audit
from app.context import Services
from app.db import resources, tables
from app.db.name_cache import NameKey
from app.encoders import encoding
from app.errors import Conflict, EncoderNeedsVectors, EncoderNotFound, blaming
from app.openai import queries
from app.request_context import RequestContext
from app.translate import fit as translators

_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
MODEL_ID_PATTERN = re.compile(
    rf"(?P<encoder>{_NAME_PATTERN})(->(?P<target>{_NAME_PATTERN})@(?P<anchor_set>{_NAME_PATTERN}))?"
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


def parse_model(text: str) -> ModelId:
    """The parts of a model id. Raises EncoderNotFound if the text is not one."""
    match = MODEL_ID_PATTERN.fullmatch(text)
    if match is None:
        raise EncoderNotFound(
            f"There is no model {text[:200]!r}. A model is `encoder`, "
            "`encoder->target@anchor-set` or an alias; /v1/models lists them.",
            field="model",
        )
    return ModelId(**match.groupdict())


def find_model(
    services: Services, project: str, model_id: ModelId
) -> tuple[tables.EncoderRow, tables.SpaceRow | None]:
    """The encoder of a model, and the space that its vectors are translated into, or None.

    Raises EncoderNotFound, EncoderNeedsVectors, AnchorSetNotFound, AnchorsNotEmbedded.
    """
    with services.db.transaction() as session:
        row = resources.by_name(
            session, tables.EncoderRow, project, model_id.encoder, field="model"
        )
    encoding.spec_of(row)
    request = model_id.translator_request()
    return row, None if request is None else translators.find_pair(services, project, request)[1]


def put_alias(
    services: Services, context: RequestContext, name: str, model: str
) -> tables.AliasRow:
    """Create an alias, or point it to another model.

    Raises NameTaken when an encoder has the name, and the errors of `parse_model` and `find_model`.
    """
    try:
        row = _put(services, context, name, model)
    except Conflict:  # another request was faster, or deleted what the model names
        row = _put(services, context, name, model)
    services.names.forget()
    return row


def _put(services: Services, context: RequestContext, name: str, model: str) -> tables.AliasRow:
    with blaming("model", always=True):
        parsed = parse_model(model)
        try:
            encoder, target = find_model(services, context.project, parsed)
        except EncoderNeedsVectors:
            raise EncoderNeedsVectors(
                f"The service does not run encoder {parsed.encoder!r}. Name an encoder that it "
                "runs."
            ) from None
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, name)
        row = queries.alias(session, context.project, name)
        record_audit(session, context, "create" if row is None else "point", "alias", name)
        if row is None:
            row = tables.AliasRow(project=context.project, name=name)
            session.add(row)
        row.model, row.encoder_id = model, encoder.id
        row.target_id = None if target is None else target.encoder_id
        row.anchor_set_id = None if target is None else target.anchor_set_id
    return row


def delete_alias(services: Services, context: RequestContext, name: str) -> None:
    """Delete an alias. Raises AliasNotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AliasRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "alias", name)
    services.names.forget()


def find_alias(services: Services, project: str, model: str) -> tables.AliasRow | None:
    """The alias that a request's model is, or None if it is a model id."""
    if not re.fullmatch(_NAME_PATTERN, model):
        return None
    with services.db.transaction() as session:
        return queries.alias(session, project, model)


def resolve_model(services: Services, project: str, model: str) -> str:
    """The model id that an alias stands for, or the text itself if it is no alias."""
    if not re.fullmatch(_NAME_PATTERN, model):
        return model

    def look_up() -> str:
        row = find_alias(services, project, model)
        return model if row is None else row.model

    return services.names.find_or(NameKey(project, "alias", (model,)), look_up)
