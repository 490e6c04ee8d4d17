"""Registers and deletes encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.access.audit import record_audit
from app.access.name_lookup import refuse_in_use, require_free
from app.context import Services
from app.db import resources, tables
from app.encoders.encoding import load_current_model, spec_of
from app.errors import (
    InvalidRequest,
)
from app.openai import queries as aliases
from app.request_context import RequestContext
from app.stores import queries as stores
from app.types import EncoderKind, Modality


def create_encoder(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    kind: EncoderKind,
    dim: int | None = None,
    model: str | None = None,
    revision: str | None = None,
    modality: Modality | None = None,
    options: Mapping[str, Any] | None = None,
) -> tables.EncoderRow:
    """Register an encoder. A model that the service runs is loaded now, which finds a wrong name.

    Raises NameTaken, InvalidRequest, and the errors of loading a model.
    """
    require_free(services, tables.EncoderRow, context.project, name)
    require_free(services, tables.AliasRow, context.project, name)
    row = tables.EncoderRow(
        project=context.project,
        name=name,
        kind=kind,
        dim=dim,
        model=model,
        revision=revision,
        options=dict(options or {}),
    )
    if kind is EncoderKind.external:
        if dim is None:
            raise InvalidRequest("An encoder of kind `external` needs `dim`. Add it.", field="dim")
        for field, value in (("model", model), ("revision", revision), ("options", options)):
            if value:
                raise InvalidRequest(
                    f"An encoder of kind `external` takes no `{field}`. Remove it, or name "
                    "another kind.",
                    field=field,
                )
        row.modality = modality or Modality.text
    else:
        _describe_model(services, row, dim, modality)
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, name)
        resources.require_free(session, tables.AliasRow, context.project, name)
        session.add(row)
        record_audit(session, context, "create", "encoder", name)
    return row


def _describe_model(
    services: Services, row: tables.EncoderRow, dim: int | None, modality: Modality | None
) -> None:
    """Load the model, and copy its properties to the row.

    Raises InvalidRequest when the request contradicts them.
    """
    if row.model is None:
        raise InvalidRequest(
            f"An encoder of kind `{row.kind}` needs `model`. Add it.", field="model"
        )
    if dim is not None:
        raise InvalidRequest("The model has its own dimension. Remove `dim`.", field="dim")
    # Its files may have changed since another encoder was registered with it.
    services.encoders.forget(spec_of(row))
    model = load_current_model(services, row)
    if modality not in (None, model.modality):
        raise InvalidRequest(
            f"This model reads {model.modality}, not {modality}. Remove `modality`, or name "
            "another model.",
            field="modality",
        )
    row.dim, row.modality, row.identity = model.dim, model.modality, model.identity.members


def delete_encoder(services: Services, context: RequestContext, name: str) -> None:
    """Raises EncoderNotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.EncoderRow, context.project, name)
        users = resources.users_of_encoder(session, row) + stores.stores_of_encoder(session, row)
        users += aliases.aliases_of(session, row)
        refuse_in_use(f"encoder {name!r}", users)
        resources.drop_comparisons(session, row)
        resources.remove(session, row)
        record_audit(session, context, "delete", "encoder", name)
    services.names.forget()
