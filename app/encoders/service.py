"""Registers and deletes encoders."""

from __future__ import annotations

from app.access.audit import record_audit
from app.access.name_lookup import refuse_in_use, require_free
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.encoding import load_current_model, spec_of
from app.encoders.schemas import NewEncoder
from app.errors import InvalidRequest
from app.openai import queries as aliases
from app.stores import queries as stores
from app.types import Modality


def create_encoder(
    services: Services, context: RequestContext, new: NewEncoder
) -> tables.EncoderRow:
    """Register an encoder. A model that the service runs is loaded now, which finds a wrong name.

    Raises NameTaken, InvalidRequest for another modality than the model's, and the errors of
    loading a model.
    """
    require_free(services, tables.EncoderRow, context.project, new.name)
    require_free(services, tables.AliasRow, context.project, new.name)
    options = new.options and new.options.model_dump(exclude_unset=True, exclude_none=True)
    row = tables.EncoderRow(
        project=context.project,
        options=options or {},
        **new.model_dump(include={"name", "kind", "dim", "model", "revision"}),
    )
    if row.model is None:
        row.modality = new.modality or Modality.text
    else:
        # Its files may have changed since another encoder was registered with it.
        services.encoders.forget(spec_of(row))
        model = load_current_model(services, row)
        if new.modality not in (None, model.modality):
            raise InvalidRequest(
                f"This model reads {model.modality}, not {new.modality}. Remove `modality`, or "
                "name another model.",
                field="modality",
            )
        row.dim, row.modality, row.identity = model.dim, model.modality, model.identity.members
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, new.name)
        resources.require_free(session, tables.AliasRow, context.project, new.name)
        session.add(row)
        record_audit(session, context, "create", "encoder", new.name)
    return row


def delete_encoder(services: Services, context: RequestContext, name: str) -> None:
    """Raises NotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, context.project, name)
        users = resources.users_of_encoder(session, row) + stores.stores_of_encoder(session, row)
        users += aliases.aliases_of(session, row)
        refuse_in_use(f"encoder {name!r}", users)
        resources.drop_comparisons(session, row)
        resources.remove(session, row)
        record_audit(session, context, "delete", "encoder", name)
    services.names.forget()
