"""Models of `/v1`: an encoder, `encoder->target@anchor-set`, or an alias of either."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import torch

from app.access.audit import record_audit
from app.context import RequestContext, Services
from app.db import resources, tables
from app.db.cache import NameKey
from app.encoders import encoding, incoming
from app.encoders.encoding import EncodedVectors
from app.encoders.models.base import Input
from app.errors import (
    Conflict,
    InputTooLong,
    InvalidOption,
    InvalidRequest,
    NotFound,
    TokensNotRead,
    blaming,
)
from app.maths.relevance.rescoring import cosines
from app.openai import queries
from app.openai.schemas import (
    EmbeddingsRequest,
    OpenAIModel,
    RerankAnswer,
    RerankRequest,
    RerankResult,
)
from app.search import native_vectors
from app.translate import fit as translators
from app.translate.maps import FitRequest, SpacePair
from app.translate.service import Translation, prepare_map
from app.translate.warnings import AnswerWarning, warnings_about_change
from app.types import InputRole

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_MODEL_ID = re.compile(rf"({_NAME})(?:->({_NAME})@({_NAME}))?")


@dataclass(frozen=True)
class Model:
    """What a model's name stands for: an encoder, and the translation of its vectors or None.

    pair        the spaces of the translation
    created_at  of the alias, the target or the encoder
    """

    encoder: tables.EncoderRow
    created_at: datetime
    translation: Translation | None = None
    pair: SpacePair | None = None

    @property
    def target(self) -> tables.SpaceRow | None:
        return None if self.pair is None else self.pair.both[1]


def find_model(services: Services, project: str, name: str) -> Model:
    """Return the model of a request, from memory where possible.

    Raises NotFound, EncoderNeedsVectors, AnchorsNotEmbedded.
    """

    def look_up() -> Model:
        alias = None
        if re.fullmatch(_NAME, name):
            with services.db.transaction() as session:
                alias = queries.alias(session, project, name)
        found = _read_id(services, project, name if alias is None else alias.model)
        return found if alias is None else replace(found, created_at=alias.created_at)

    return services.names.find_or(NameKey(project, "model", (name,)), look_up)


def _read_id(services: Services, project: str, model: str) -> Model:
    """Return the model of an id that is no alias. Raises what `find_model` raises."""
    match = _MODEL_ID.fullmatch(model)
    if match is None:
        raise NotFound(
            f"There is no model {model[:200]!r}. A model is `encoder`, "
            "`encoder->target@anchor-set` or an alias; /v1/models lists encoders and aliases.",
            "encoder",
            field="model",
        )
    name, target, anchor_set = match.groups()
    with services.db.transaction() as session:
        encoder = resources.by_name(session, tables.EncoderRow, project, name, field="model")
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


def embed(
    services: Services, context: RequestContext, request: EmbeddingsRequest
) -> tuple[EncodedVectors, Sequence[AnswerWarning]]:
    """Return the inputs' vectors by the request's model, and warnings about it.

    Raises what `find_model`, `encode` and `prepare_map` raise, TokensNotRead, InvalidRequest,
    InvalidOption, and InputTooLong where the request does not let inputs be cut.
    """
    inputs = _read_inputs(request.input)
    model = find_model(services, context.project, request.model)
    dim = (model.target.encoder if model.target else model.encoder).dim
    asked = dim if request.dimensions is None else request.dimensions
    if not (dim if model.target else 1) <= asked <= dim:
        raise InvalidOption(
            f"Model {request.model!r} has {dim} dimensions. Send "
            f"{dim if model.target else f'1 to {dim}'}, or remove `dimensions`.",
            field="dimensions",
        )
    incoming.reserve_answer(services, context, "input", len(inputs), dim=dim)
    role = InputRole(request.input_type)
    made = encoding.encode(services, context, model.encoder, inputs, role=role, field="input")
    if made.truncated and not request.truncate:
        raise InputTooLong(
            "Some inputs are longer than the model reads. Shorten them, or send `truncate: true`.",
            field="input",
            rows=made.truncated,
        )
    vectors, warnings = made.vectors, warnings_about_change(model.encoder)
    if model.translation is not None:
        served = prepare_map(services, context, model.translation, model.pair)
        warnings = [*served.warnings, *warnings]
        with blaming("input"):
            vectors = served.start(services, context.project, vectors).result().vectors
    elif asked < dim:
        # Models that were trained for it (Matryoshka) lose little; others lose more.
        vectors = vectors[:, :asked]
        if (model.encoder.identity or {}).get("normalise"):
            vectors = torch.nn.functional.normalize(vectors, dim=1)
    return replace(made, vectors=vectors), warnings


def _read_inputs(value: Any) -> list[Input]:
    """Return the inputs as a list. Raises TokensNotRead and InvalidRequest."""
    inputs = value if isinstance(value, list) else [value]
    wrong = [row for row, each in enumerate(inputs) if not isinstance(each, str)]
    if inputs and not wrong:
        return inputs
    if inputs and all(isinstance(each, int | list) for each in inputs):
        raise TokensNotRead(
            "Send texts instead of tokens, which differ between models. "
            "In LangChain, set check_embedding_ctx_length=False.",
            field="input",
        )
    raise InvalidRequest(
        "Expected a text, or a list of at least one text.", field="input", rows=wrong
    )


def rerank(services: Services, context: RequestContext, request: RerankRequest) -> RerankAnswer:
    """Order documents by the cosine of their vectors and the query's.

    A framework with a slot for a reranker puts a new encoder behind its old index, without a
    client of ours. Raises what `find_model` and `encode` raise, and InvalidRequest.
    """
    model = find_model(services, context.project, request.model)
    if model.translation is not None:
        raise InvalidRequest(
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


def put_alias(
    services: Services, context: RequestContext, name: str, model: str
) -> tables.AliasRow:
    """Create an alias, or point it to another model.

    Raises NameTaken when an encoder has the name, and what `find_model` raises.
    """
    try:
        row = _put(services, context, name, model)
    except Conflict:  # another request was faster, or deleted what the model names
        row = _put(services, context, name, model)
    services.names.forget()
    return row


def _put(services: Services, context: RequestContext, name: str, model: str) -> tables.AliasRow:
    with blaming("model", always=True):
        found = _read_id(services, context.project, model)
    with services.db.transaction() as session:
        resources.require_free(session, tables.EncoderRow, context.project, name)
        row = queries.alias(session, context.project, name)
        record_audit(session, context, "create" if row is None else "point", "alias", name)
        if row is None:
            row = tables.AliasRow(project=context.project, name=name)
            session.add(row)
        row.model, row.encoder_id = model, found.encoder.id
        row.target_id = None if found.target is None else found.target.encoder_id
        row.anchor_set_id = None if found.target is None else found.target.anchor_set_id
    return row


def delete_alias(services: Services, context: RequestContext, name: str) -> None:
    """Delete an alias. Raises NotFound."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AliasRow, context.project, name)
        resources.remove(session, row)
        record_audit(session, context, "delete", "alias", name)
    services.names.forget()
