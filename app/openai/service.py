"""Models of `/v1`: an encoder, `encoder->target@anchor-set`, or an alias of those or of a store."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import torch
from anyio import to_thread
from torch import Tensor

from app import errors
from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import resources, tables
from app.db.cache import NameKey
from app.encoders import encoding, incoming
from app.encoders.encoding import EncodedVectors
from app.encoders.models.base import Input
from app.maths.relevance.rescoring import cosines
from app.moves.context import clients_see_new
from app.openai import queries
from app.openai.schemas import (
    EmbeddingsRequest,
    NewName,
    OpenAIModel,
    RerankAnswer,
    RerankRequest,
    RerankResult,
)
from app.search import native_vectors
from app.stores.registry import has_cutover
from app.translate import fit as translators
from app.translate.maps import FitRequest, SpacePair
from app.translate.service import Translation, prepare_map
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import EncoderKind, InputRole

log = logging.getLogger("anchorage")

#: how long a model is remembered whose store may be switched: vectors of the other one are made
#: for at most this time
FOLLOWED_S = 0.25

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_MODEL_ID = re.compile(rf"({_NAME})(?:->({_NAME})@({_NAME}))?")


@dataclass(frozen=True)
class Model:
    """What a model's name stands for: an encoder, and the translation of its vectors or None.

    pair        the spaces of the translation
    created_at  of the alias, the target or the encoder
    until       when it must be looked up again, because its store has a migration
    """

    encoder: tables.EncoderRow
    created_at: datetime
    translation: Translation | None = None
    pair: SpacePair | None = None
    until: float = math.inf

    @property
    def id(self) -> str:
        if self.translation is None:
            return self.encoder.name
        fit = self.translation.request
        return f"{fit.source}->{fit.target}@{fit.anchor_set}"

    @property
    def target(self) -> tables.SpaceRow | None:
        return None if self.pair is None else self.pair.both[1]


def find_model(services: Services, project: str, name: str) -> Model:
    """Return the model of a request, from memory where possible.

    Raises NotFound, EncoderNeedsVectors, AnchorsNotEmbedded; for the alias of a store also
    EncoderUnavailable, and the store's errors during a step.
    """

    def look_up() -> Model:
        alias, moving, since = None, None, time.monotonic()
        if is_plain := re.fullmatch(_NAME, name) is not None:
            with services.db.transaction() as session:
                alias, moving = queries.alias(session, project, name)
        if alias is None:
            return _read_id(services, project, name, or_name=is_plain)
        model = alias.model or _model_of_store(services, alias, moving)
        until = math.inf if moving is None else since + FOLLOWED_S
        found = _read_id(services, project, model)
        return replace(found, created_at=alias.created_at, until=until)

    return services.names.find_or(_key(project, name), look_up)


def load_named_models(services: Services) -> None:
    """Load the models whose vectors the clients of stores with names ask for."""
    names: Sequence[tuple[str, str]] = []
    with (
        suppress(errors.DatabaseUnavailable),
        services.db.transaction() as session,
    ):  # else none is loaded
        names = queries.names_of_stores(session)
    for project, name in names:
        try:
            encoder = find_model(services, project, name).encoder
            if encoder.kind != EncoderKind.openai:
                encoding.load_current_model(services, encoder)
        except errors.AnchorageError as error:  # the first request meets it too
            log.warning("the model of a store's name is not loaded: %s", error.code)


def _key(project: str, name: str) -> NameKey:
    return NameKey(project, "model", (name,))


async def _find_soon(services: Services, project: str, name: str) -> Model:
    """As `find_model`, in the event loop: what is not in memory is looked up in a thread."""
    found: Model | None = services.names.find(_key(project, name))
    if found is None:
        found = await to_thread.run_sync(find_model, services, project, name)
    return found


def _model_of_store(
    services: Services, alias: tables.AliasRow, moving: tables.MigrationRow | None
) -> str:
    """Return the id of the model whose vectors the clients of the alias' store see now.

    Raises EncoderUnavailable.
    """
    assert alias.store is not None
    wanted, other, anchor_set = alias.store.encoder, None, None
    if moving is not None:
        other, anchor_set = moving.target, moving.anchor_set
        if clients_see_new(services, moving):
            wanted, other = other, wanted
    if wanted.model is not None:
        return wanted.name
    if other is None or other.model is None or anchor_set is None:
        raise errors.EncoderUnavailable(
            f"The service does not run {wanted.name!r}, whose vectors the store "
            f"{alias.store.name!r} has. Migrate the store to an encoder that the service runs: "
            "after the first 1,000 rows, that one answers.",
            field="model",
        )
    return f"{other.name}->{wanted.name}@{anchor_set.name}"


def _read_id(services: Services, project: str, model: str, *, or_name: bool = False) -> Model:
    """Return the model of an id that is no alias; or_name: a refusal proposes aliases too.

    Raises what `find_model` raises.
    """
    match = _MODEL_ID.fullmatch(model)
    if match is None:
        raise errors.NotFound(
            f"There is no model {model[:200]!r}. A model is `encoder`, "
            "`encoder->target@anchor-set` or a name; /v1/models lists encoders and names.",
            "encoder",
            field="model",
        )
    name, target, anchor_set = match.groups()
    with services.db.transaction() as session:
        encoder = resources.by_name(
            session, tables.EncoderRow, project, name, field="model", or_name=or_name
        )
    encoding.spec_of(encoder)
    if target is None:
        return Model(encoder, encoder.created_at)
    translation = Translation(FitRequest(name, target, anchor_set, "auto", {}))
    pair = translators.look_up(services, translation.name(project))
    source, made = pair.both
    return Model(source.encoder, made.created_at, translation, pair)


def describe_model(name: str, created_at: datetime, project: str) -> OpenAIModel:
    """Return a model as OpenAI's API shows it."""
    return OpenAIModel(id=name, created=int(created_at.timestamp()), owned_by=project)


async def embed(
    services: Services, context: RequestContext, request: EmbeddingsRequest
) -> tuple[EncodedVectors, Sequence[AnswerWarning], str]:
    """Return the inputs' vectors by the request's model, warnings about it, and the model's id.

    A store that was switched meanwhile needs other vectors: they are made again.
    Raises what `find_model`, `encode` and `prepare_map` raise, TokensNotRead, InvalidRequest,
    InvalidOption, and InputTooLong where the request does not let inputs be cut.
    """
    inputs = _read_inputs(request.input)
    while True:
        model = await _find_soon(services, context.project, request.model)
        found = await _embed_by(services, context, request, inputs, model)
        if model.id == (await _find_soon(services, context.project, request.model)).id:
            return *found, model.id


async def _embed_by(
    services: Services,
    context: RequestContext,
    request: EmbeddingsRequest,
    inputs: Sequence[Input],
    model: Model,
) -> tuple[EncodedVectors, Sequence[AnswerWarning]]:
    dim = (model.target.encoder if model.target else model.encoder).dim
    asked = dim if request.dimensions is None else request.dimensions
    if not (dim if model.target else 1) <= asked <= dim:
        raise errors.InvalidOption(
            f"Model {request.model!r} has {dim} dimensions. Send "
            f"{dim if model.target else f'1 to {dim}'}, or remove `dimensions`.",
            field="dimensions",
        )
    incoming.reserve_answer(services, context, "input", len(inputs), dim=dim)
    role = InputRole(request.input_type)
    made = await encoding.encode_soon(
        services, context, model.encoder, inputs, role=role, field="input"
    )
    if made.truncated and not request.truncate:
        raise errors.InputTooLong(
            "Some inputs are longer than the model reads. Shorten them, or send `truncate: true`.",
            field="input",
            rows=made.truncated,
        )
    vectors, warnings = made.vectors, warnings_about_change(model.encoder)
    if model.translation is not None:
        translated = to_thread.run_sync(_translate, services, context, model, vectors)
        vectors, more = await translated
        warnings = [*more, *warnings]
    elif asked < dim:
        # Models that were trained for it (Matryoshka) lose little; others lose more.
        vectors = vectors[:, :asked]
        if (model.encoder.identity or {}).get("normalise"):
            vectors = torch.nn.functional.normalize(vectors, dim=1)
    return replace(made, vectors=vectors), warnings


def _translate(
    services: Services, context: RequestContext, model: Model, vectors: Tensor
) -> tuple[Tensor, Sequence[AnswerWarning]]:
    """Return the vectors in the target's space, and warnings about the translation."""
    assert model.translation is not None
    served = prepare_map(services, context, model.translation, model.pair)
    with errors.blaming("input"):
        return served.start(services, context.project, vectors).result().vectors, served.warnings


def _read_inputs(value: Any) -> list[Input]:
    """Return the inputs as a list. Raises TokensNotRead and InvalidRequest."""
    inputs = value if isinstance(value, list) else [value]
    wrong = [row for row, each in enumerate(inputs) if not isinstance(each, str)]
    if inputs and not wrong:
        return inputs
    if inputs and all(isinstance(each, int | list) for each in inputs):
        raise errors.TokensNotRead(
            "Send texts instead of tokens, which differ between models. "
            "In LangChain, set check_embedding_ctx_length=False.",
            field="input",
        )
    raise errors.InvalidRequest(
        "Expected a text, or a list of at least one text.", field="input", rows=wrong
    )


def rerank(services: Services, context: RequestContext, request: RerankRequest) -> RerankAnswer:
    """Order documents by the cosine of their vectors and the query's.

    A framework with a slot for a reranker puts a new encoder behind its old index, without a
    client of ours. Raises what `find_model` and `encode` raise, and InvalidRequest.
    """
    model = find_model(services, context.project, request.model)
    if model.translation is not None:
        raise errors.InvalidRequest(
            "`model` names a translation. Name an encoder that embeds the documents itself.",
            field="model",
        )
    query = encoding.encode(
        services, context, model.encoder, [request.query], role=InputRole.query, field="query"
    )
    texts = request.documents
    made = native_vectors.embed_texts(services, context, model.encoder, texts, field="documents")
    scores = cosines(query.vectors, made.vectors, [len(texts)])
    order = scores.sort(descending=True, stable=True).indices[: request.top_n].tolist()
    results = [RerankResult(index=row, relevance_score=float(scores[row])) for row in order]
    usage = {"total_tokens": query.tokens + made.tokens}
    return RerankAnswer(model=request.model, results=results, usage=usage)


def put_name(
    services: Services, context: RequestContext, name: str, new: NewName
) -> tables.AliasRow:
    """Create an alias, or point one of a model to another model.

    Raises NameTaken when an encoder, or an alias of another store, has the name, NotExactlyOne,
    StoreUnsupported for a store without a cutover, and what `find_model` raises for a model.
    """
    if (new.model is None) == (new.store is None):
        raise errors.NotExactlyOne("Send exactly one of `model` and `store`.", field="model")
    columns: dict[str, Any] = {}
    if new.model is not None:
        with errors.blaming("model", always=True):
            found = _read_id(services, context.project, new.model)
        columns = {"model": new.model, "encoder_id": found.encoder.id}
        if found.target is not None:
            columns["target_id"] = found.target.encoder_id
            columns["anchor_set_id"] = found.target.anchor_set_id
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, name)
        store = None
        if new.store is not None:
            store = resources.by_name(
                session, tables.StoreRow, context.project, new.store, field="store"
            )
            if not has_cutover(store.kind):
                raise errors.StoreUnsupported(
                    f"The application of a store of kind {store.kind!r} opens the new vectors "
                    "itself, so no name can follow it. Give an encoder the name, with `model`.",
                    field="store",
                )
        row, _ = queries.alias(session, context.project, name)
        if row is None:
            record_audit(session, context, "create", "name", name)
            row = tables.AliasRow(project=context.project, name=name, store=store, **columns)
            session.add(row)
        elif row.store != store:
            owner = f"the store {row.store.name!r}" if row.store else f"the model {row.model!r}"
            way = f"Choose another name, or first delete this one: DELETE /names/{name}."
            raise errors.NameTaken(f"The name {name!r} belongs to {owner}. {way}", field="name")
        elif row.model != new.model:
            record_audit(session, context, "point", "name", name)
            for column, value in ({"target_id": None, "anchor_set_id": None} | columns).items():
                setattr(row, column, value)
    services.names.forget()
    return row


def delete_name(services: Services, context: RequestContext, name: str) -> None:
    """Delete an alias. Raises NotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AliasRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "name", name)
    services.names.forget()
