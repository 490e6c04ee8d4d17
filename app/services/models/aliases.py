"""Aliases: plain names for models, where `new->old@faq` does not fit or may change."""

from __future__ import annotations

from app.errors import (
    AnchorsNotEmbedded,
    Conflict,
    EncoderNeedsVectors,
    HeadNotFound,
    NotFound,
    blaming,
)
from app.services.access.audit import record_audit
from app.services.context import Services
from app.services.models import model_ids
from app.services.models.model_ids import ModelId
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.name_cache import NameKey
from app.storage.queries import aliases, resources


def put_alias(
    services: Services, context: RequestContext, name: str, model: str
) -> tables.AliasRow:
    """Create an alias, or point it to another model.

    Raises NameTaken when an encoder or a head has the name, and what a request with the model
    raises: the not-found errors, AnchorsNotEmbedded, EncoderNeedsVectors, InvalidHead.
    """
    try:
        row = _put(services, context, name, model)
    except Conflict:  # another request was faster, or deleted what the model names
        row = _put(services, context, name, model)
    services.names.forget()
    return row


def _put(services: Services, context: RequestContext, name: str, model: str) -> tables.AliasRow:
    with blaming("model", always=True):
        references = _references(services, context.project, model_ids.parse_model(model))
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, name)
        resources.require_free(session, tables.HeadRow, context.project, name)
        row = aliases.alias(session, context.project, name)
        record_audit(session, context, "create" if row is None else "point", "alias", name)
        if row is None:
            row = tables.AliasRow(project=context.project, name=name)
            session.add(row)
        row.model = model
        for column, row_id in references.items():
            setattr(row, column, row_id)
    return row


def _references(services: Services, project: str, model: ModelId) -> dict[str, str | None]:
    """The row ids of what a model names, by the columns of an alias.

    Raises what a request with the model raises.
    """
    head = _find_head(services, project, model.head)
    found: dict[str, str | None] = dict.fromkeys(("encoder_id", "target_id", "anchor_set_id"))
    found["head_id"] = None if head is None else head.id
    try:
        encoder, target = model_ids.find_embedding_model(services, project, model)
    except (NotFound, AnchorsNotEmbedded, EncoderNeedsVectors) as error:
        if head is None and isinstance(error, EncoderNeedsVectors):
            raise EncoderNeedsVectors(
                f"The service does not run encoder {model.encoder!r}. Name an encoder that it "
                "runs, or a head."
            ) from None
        if head is None:
            raise
        encoder_name = None if model.target is None else model.encoder
        source = model_ids.find_head_space(services, project, head, encoder_name, model.anchor_set)
        if source is not None:
            found |= {"encoder_id": source.encoder_id, "anchor_set_id": source.anchor_set_id}
        return found
    found["encoder_id"] = encoder.id
    if target is not None:
        found |= {"target_id": target.encoder_id, "anchor_set_id": target.anchor_set_id}
    return found


def _find_head(services: Services, project: str, name: str) -> tables.HeadRow | None:
    try:
        with services.db.transaction() as session:
            return resources.by_name(session, tables.HeadRow, project, name)
    except HeadNotFound:
        return None


def delete_alias(services: Services, context: RequestContext, name: str) -> None:
    """Delete an alias. Raises AliasNotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AliasRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "alias", name)
    services.names.forget()


def find_alias(services: Services, project: str, model: str) -> tables.AliasRow | None:
    """The alias that a request's model is, or None if it is a model id."""
    if not model_ids.is_name(model):
        return None
    with services.db.transaction() as session:
        return aliases.alias(session, project, model)


def known_model(services: Services, project: str, model: str) -> str | None:
    """Return what `resolve_model` returns if that needs no database, else None."""
    if not model_ids.is_name(model):
        return model
    known: str | None = services.names.find(_key(project, model))
    return known


def resolve_model(services: Services, project: str, model: str) -> str:
    """The model id that an alias stands for, or the text itself if it is no alias."""

    def look_up() -> str:
        row = find_alias(services, project, model)
        return model if row is None else row.model

    return known_model(services, project, model) or services.names.find_or(
        _key(project, model), look_up
    )


def _key(project: str, name: str) -> NameKey:
    return NameKey(project, "alias", (name,))
