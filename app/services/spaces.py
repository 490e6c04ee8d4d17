"""Encoders, anchor sets and the spaces they make."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import (
    AnchorageError,
    AnchorCountMismatch,
    AnchorsNotEmbedded,
    Conflict,
    EmbeddingsExist,
    EmptyVectors,
    InUse,
    InvalidRequest,
    NotExactlyOne,
    PairsNotFound,
    TooManyVectors,
    UnequalAnchors,
)
from app.maths.anchors.health import examine
from app.maths.bootstrap.neighbours import Beat, silent
from app.maths.geometry import space as spaces
from app.services.access.writes import note
from app.services.context import Limits, Services, answer_bytes
from app.services.encoders.encoding import Encoded, Inputs, encode, load_anew, spec_of
from app.services.upkeep.cache_codecs import SPACE
from app.storage import tables
from app.storage.cache import Key
from app.storage.name_cache import Name
from app.storage.queries import resources
from app.types import EncoderKind, Modality

#: what a number of an answer takes until it is sent: as float32, and as text or base64
NUMBER_BYTES = 16


def named(
    services: Services, table: type[resources.Named], project: str, name: str, *, field: str
) -> resources.Named:
    """A row by its name, without a query if it was looked up a moment ago. Raises the not-found errors."""

    def look_up() -> resources.Named:
        with services.db.transaction() as session:
            return resources.by_name(session, table, project, name, field=field)

    return services.names.find_or(Name(project, table.__tablename__, (name,)), look_up)


def require_free(services: Services, table: type[resources.Named], project: str, name: str) -> None:
    """Wait until no process can answer by an earlier row of that name. Raises NameTaken, and Overloaded while many wait.

    A deletion whose client is not answered yet, or that has hung up, may be a moment ago.
    """
    since = tables.now() - timedelta(
        seconds=60
    )  # far enough back for any difference between clocks
    with services.db.transaction() as session:
        resources.require_free(session, table, project, name)
        deleted_at = resources.deleted_at(session, table, project, name, since=since)
    wait_s = 0.0 if deleted_at is None else services.names.still_settling_s(deleted_at)
    if wait_s:
        with services.settling():
            time.sleep(wait_s)


def check_count(vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None) -> None:
    """Whether they are few enough, and of that dimension. Raises TooManyVectors, EmptyVectors, DimensionMismatch."""
    if vectors.shape[0] > limits.vectors:
        raise TooManyVectors(
            f"{vectors.shape[0]} vectors in one request, {limits.vectors} are allowed",
            field=field,
            limit=limits.vectors,
        )
    try:
        spaces.check_shape(vectors, dim=dim)
    except AnchorageError as error:
        raise error.at(field) from None


def checked(vectors: Tensor, *, field: str, limits: Limits, dim: int | None = None) -> Tensor:
    """The vectors in float32, once they are checked; errors name `field`. Raises as `check_vectors`, and TooManyVectors."""
    check_count(vectors, field=field, limits=limits)
    try:
        spaces.check_vectors(vectors, dim=dim)
    except AnchorageError as error:
        raise error.at(field) from None
    return vectors.float()


#: what a space weighs, in the size of its unit anchors: they, and the two factors of their spectrum, once it is asked for
SPECTRA = 3


def sent(vectors: Tensor | None, inputs: Inputs | None) -> tuple[str, int]:
    """Which of the two fields a client sent, and how many rows: exactly one of them. Raises NotExactlyOne."""
    if vectors is not None and inputs is None:
        return "vectors", len(vectors)
    if inputs is not None and vectors is None:
        return "inputs", len(inputs.values)
    raise NotExactlyOne("send exactly one of vectors and inputs", field="vectors")


def given_vectors(
    services: Services, encoder: tables.Encoder, vectors: Tensor | None, inputs: Inputs | None
) -> Encoded:
    """The client's vectors, or its inputs encoded. Raises NotExactlyOne, the vector errors, and as `encode`."""
    field, _ = sent(vectors, inputs)
    if vectors is None:
        assert inputs is not None
        return encode(services, encoder, inputs.values, role=inputs.role)
    return Encoded(checked(vectors, field=field, limits=services.limits, dim=encoder.dim))


def check_answer(
    services: Services, field: str, count: int, *, dim: int, number_bytes: int = NUMBER_BYTES
) -> None:
    """Take room for an answer of `count` rows of `dim` numbers: before any work is done.

    Raises TooManyVectors when they are more than one answer may hold, Overloaded and TooMuchAtOnce for those of all.
    """
    most = services.limits.numbers // dim
    if count > most:
        raise TooManyVectors(
            f"{count} vectors would be answered with {dim} numbers each; {most} such vectors are allowed in one request",
            field=field,
            limit=most,
        )
    answer_bytes.get()(count * dim * number_bytes)


def create_encoder(
    services: Services,
    project: str,
    *,
    name: str,
    kind: EncoderKind,
    dim: int | None = None,
    model: str | None = None,
    revision: str | None = None,
    modality: Modality | None = None,
    options: Mapping[str, Any] | None = None,
) -> tables.Encoder:
    """Register an encoder; one the service runs is loaded now, so that a wrong name shows at once.

    Raises NameTaken, InvalidRequest, and as the model's loader.
    """
    require_free(services, tables.Encoder, project, name)
    row = tables.Encoder(
        project=project,
        name=name,
        kind=kind,
        dim=dim,
        model=model,
        revision=revision,
        options=dict(options or {}),
    )
    if kind is EncoderKind.external:
        if dim is None or model is not None or revision is not None or options:
            raise InvalidRequest(
                "an external encoder has a dim, and no model, revision or options", field="dim"
            )
        row.modality = modality or Modality.text
    else:
        _describe_model(services, row, dim, modality)
    with services.db.transaction() as session:
        resources.require_free(session, tables.Encoder, project, name)
        session.add(row)
        note(session, project, "create", "encoder", name, row)
    return row


def _describe_model(
    services: Services, row: tables.Encoder, dim: int | None, modality: Modality | None
) -> None:
    """Load the model, and write down what it is. Raises InvalidRequest for what it is said to be and is not."""
    if dim is not None or row.model is None:
        raise InvalidRequest(
            f"an encoder of kind {row.kind} has a model, which tells its dim", field="model"
        )
    services.encoders.forget(
        spec_of(row)
    )  # its files may be others than when another encoder was registered
    model = load_anew(services, spec_of(row))
    if modality not in (None, model.modality):
        raise InvalidRequest(f"this model reads {model.modality}, not {modality}", field="modality")
    row.dim, row.modality, row.identity = model.dim, model.modality, model.identity.members


def delete_encoder(services: Services, project: str, name: str) -> None:
    """Raises EncoderNotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.Encoder, project, name)
        _refuse_in_use(f"encoder {name!r}", resources.users_of_encoder(session, row))
        resources.remove(session, row)
        note(session, project, "delete", "encoder", name)
    services.names.forget()


def create_anchor_set(
    services: Services, project: str, *, name: str, embeddings: Mapping[str, Tensor]
) -> tables.AnchorSet:
    """A new set with all its embeddings, or nothing. Raises as `new_anchor_set`."""
    row = new_anchor_set(services, project, name=name, embeddings=embeddings)
    with services.db.transaction() as session:
        keep_anchor_set(session, row)
    return row


def keep_anchor_set(session: Session, row: tables.AnchorSet) -> None:
    """Add a new set. Raises NameTaken."""
    resources.require_free(session, tables.AnchorSet, row.project, row.name)
    session.add(row)
    note(session, row.project, "create", "anchor-set", row.name, row)


def new_anchor_set(
    services: Services,
    project: str,
    *,
    name: str,
    embeddings: Mapping[str, Tensor],
    provenance: dict[str, Any] | None = None,
    inputs: str | None = None,
    made_by: Mapping[str, str] | None = None,
    pairs: Mapping[str, Tensor] | None = None,
    beat: Beat = silent,
) -> tables.AnchorSet:
    """The row of a new set and its spaces, not yet in any session; its blobs are written.

    inputs   the blob of its items, where they are kept
    made_by  ids of the encoders that made the embeddings, when the service did
    pairs    where a bootstrap found each anchor: `pairs` (k, 2) int64, rows of the source's and the target's pool, and
             `confidence` (k,) float32, nan where the method has none
    beat     called before each space is made, which takes seconds of many anchors; what it raises ends it

    Raises NameTaken, EncoderNotFound, UnequalAnchors, and every vector error, naming `embeddings.<encoder>`.
    """
    if not embeddings:
        raise EmptyVectors("expected embeddings by at least one encoder", field="embeddings")
    require_free(services, tables.AnchorSet, project, name)
    with services.db.transaction() as session:
        encoders = {
            key: resources.by_name(session, tables.Encoder, project, key, field=f"embeddings.{key}")
            for key in embeddings
        }
    for key, row_ in encoders.items():
        _require_maker(row_, (made_by or {}).get(key))
    sizes = {key: vectors.shape[0] for key, vectors in embeddings.items()}
    size = next(iter(sizes.values()))
    for key, other in sizes.items():
        if other != size:
            raise UnequalAnchors(
                f"{next(iter(sizes))!r} brings {size} vectors, {key!r} {other}",
                field=f"embeddings.{key}",
            )
    row = tables.AnchorSet(
        project=project, name=name, size=size, provenance=provenance, inputs=inputs
    )
    row.pairs = None if pairs is None else services.blobs.put(pairs)
    for key, vectors in embeddings.items():
        beat()
        row.spaces.append(
            make_space(
                services, project, encoders[key], vectors, size=size, field=f"embeddings.{key}"
            )
        )
    return row


def add_embeddings(
    services: Services,
    project: str,
    *,
    anchor_set: str,
    encoder: str,
    vectors: Tensor,
    field: str = "vectors",
    made_by: str | None = None,
) -> tables.AnchorSet:
    """Another encoder's embeddings of a set; `made_by`: the id of the encoder that made them, when the service did.

    Raises the not-found errors, EmbeddingsExist, AnchorCountMismatch, and the vector errors.
    """
    set_row, encoder_row = place_for(services, project, anchor_set=anchor_set, encoder=encoder)
    _require_maker(encoder_row, made_by)
    space = make_space(services, project, encoder_row, vectors, size=set_row.size, field=field)
    with services.db.transaction() as session:
        return keep_space(session, set_row, space)


def place_for(
    services: Services, project: str, *, anchor_set: str, encoder: str
) -> tuple[tables.AnchorSet, tables.Encoder]:
    """A set, and an encoder that has not embedded it. Raises the not-found errors and EmbeddingsExist."""
    with services.db.transaction() as session:
        set_row = resources.by_name(session, tables.AnchorSet, project, anchor_set)
        encoder_row = resources.by_name(session, tables.Encoder, project, encoder, field="encoder")
        _refuse_present(session, set_row, encoder_row)
    return set_row, encoder_row


def keep_space(
    session: Session, set_row: tables.AnchorSet, space: tables.Space
) -> tables.AnchorSet:
    """Add a space to its set. Raises AnchorSetNotFound, EmbeddingsExist, and Conflict when the set was made anew meanwhile."""
    found = resources.by_name(session, tables.AnchorSet, set_row.project, set_row.name)
    if found.id != set_row.id:  # another set, made meanwhile under the name of a deleted one
        raise Conflict(
            f"anchor set {set_row.name!r} was made anew meanwhile; look at it and try again",
            field="anchor_set",
        )
    _refuse_present(session, found, space.encoder)
    space.anchor_set_id = found.id
    session.add(space)
    note(session, found.project, "embed", "anchor-set", found.name)
    session.flush()
    session.refresh(found)
    return found


def delete_anchor_set(services: Services, project: str, name: str) -> None:
    """The set, its spaces and its translators. Raises AnchorSetNotFound, InUse."""
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSet, project, name)
        _refuse_in_use(f"anchor set {name!r}", resources.users_of_anchor_set(session, row))
        resources.remove(session, row)
        note(session, project, "delete", "anchor-set", name)
    services.names.forget()


def grown_pairs(services: Services, project: str, name: str) -> tuple[Tensor, Tensor]:
    """Where a bootstrap found a set's anchors: pairs (k, 2) of rows of the two pools, and their confidence (k,).

    Raises AnchorSetNotFound, and PairsNotFound for a set that no bootstrap made.
    """
    with services.db.transaction() as session:
        row = resources.by_name(session, tables.AnchorSet, project, name)
    if row.pairs is None:
        raise PairsNotFound(
            f"anchor set {name!r} keeps no pairs: no bootstrap made it", field="name"
        )
    kept = services.blobs.get(row.pairs, of=f"anchor set {name!r}")
    return kept["pairs"], kept["confidence"]


def anchors(services: Services, space: tables.Space) -> Tensor:
    """A space's raw anchors (k, d), float32."""
    return services.cache.get_or_make(
        ("anchors", space.blob),
        lambda: services.blobs.get(space.blob, of=f"anchor set {space.anchor_set.name!r}")[
            "anchors"
        ],
        lambda tensor: tensor.nbytes,
    )


def space_key(space: tables.Space) -> Key:
    """Where the cache has it; another word than the one of versions whose spaces had no norms."""
    return ("space and norms", space.blob)


def fitted_space(services: Services, space: tables.Space) -> spaces.Space:
    """Mean, scale and unit anchors of a stored space."""
    return services.cache.get_or_make(
        space_key(space),
        lambda: spaces.fit_space(anchors(services, space)),
        lambda fitted: SPECTRA * fitted.unit.nbytes,
        shared=SPACE,
    )


def sweep_blobs(services: Services) -> int:
    """Delete the blobs that crashed or deleted requests left behind; returns how many."""
    with services.db.transaction() as session:
        named = resources.named_blobs(session)
    return services.blobs.sweep(named)


def require_direction(vectors: Tensor, *, field: str) -> spaces.Space:
    """The fitted space of raw vectors. Raises DegenerateAnchors, naming `field`, when they are all the same."""
    try:
        return spaces.fit_space(vectors)
    except AnchorageError as error:
        raise error.at(field) from None


def make_space(
    services: Services,
    project: str,
    encoder: tables.Encoder,
    vectors: Tensor,
    *,
    size: int,
    field: str,
) -> tables.Space:
    """Check and examine `size` anchors, write their blob, and return a row not yet in any session.

    Raises AnchorCountMismatch and the vector errors.
    """
    raw = checked(vectors, field=field, limits=services.limits, dim=encoder.dim)
    if raw.shape[0] != size:
        raise AnchorCountMismatch(
            f"the set has {size} anchors, this encoder brings {raw.shape[0]}", field=field
        )
    health = asdict(examine(raw.double(), require_direction(raw, field=field)))
    return tables.Space(
        project=project,
        encoder_id=encoder.id,
        encoder=encoder,
        blob=services.blobs.put({"anchors": raw}),
        health=health,
    )


def _require_maker(encoder: tables.Encoder, made_by: str | None) -> None:
    """Raises Conflict when the encoder of that name is not the one that made the vectors."""
    if made_by not in (None, encoder.id):
        raise Conflict(
            f"encoder {encoder.name!r} was made anew meanwhile; look at it and try again",
            field="encoder",
        )


def _refuse_present(
    session: Session, anchor_set: tables.AnchorSet, encoder: tables.Encoder
) -> None:
    try:
        resources.space(session, anchor_set, encoder)
    except AnchorsNotEmbedded:
        return
    raise EmbeddingsExist(
        f"anchor set {anchor_set.name!r} already has embeddings by {encoder.name!r}; they never change, make a new set",
        field="encoder",
    )


def _refuse_in_use(what: str, users: Sequence[str]) -> None:
    if users:
        raise InUse(f"{what} is used by {', '.join(users[:10])}")
