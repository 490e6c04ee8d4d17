"""Encodes the items of anchor sets, and stores them, so that encoders can be added later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from app.anchors import from_store as store_anchors
from app.anchors import service as anchor_sets
from app.context import RequestContext, Services
from app.db import resources, tables
from app.encoders.encoding import check_inputs, encode, require_same_vectors
from app.encoders.models.base import Input, Inputs
from app.errors import (
    AnchorCountMismatch,
    EmptyVectors,
    InputsNotStored,
    InvalidRequest,
    UnequalAnchors,
)
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.types import InputRole, JobKind

#: most encoders of one request
MAX_SET_ENCODERS = 64


@dataclass(frozen=True)
class EmbedRequest:
    """What to do with items: create a set by `encoders`, or add the embeddings of one encoder.

    keep  whether a new set stores the items
    """

    anchor_set: str
    encoders: list[str]
    new: bool = False
    keep: bool = True


def embed_now(
    services: Services,
    context: RequestContext,
    request: EmbedRequest,
    inputs: Inputs | None,
    embeddings: Mapping[str, Tensor] | None = None,
) -> tables.AnchorSetRow:
    """Create the set, or add the embeddings, with items that are encoded now.

    inputs      None: those that the set stores
    embeddings  of a new set, by further encoders

    Raises the errors of `embed_later` but those of jobs, the errors of `encode`, and Conflict.
    """
    _, write = _embed(
        services, context, request, inputs, embeddings or {}, lambda done, total: None
    )
    with services.db.transaction() as session:
        return write(session)


def embed_later(
    services: Services,
    context: RequestContext,
    request: EmbedRequest,
    inputs: Inputs | None,
    embeddings: Mapping[str, Tensor] | None = None,
) -> tables.JobRow:
    """Check the request, and queue a job that creates the set or adds the embeddings.

    Raises the not-found errors, NameTaken, InvalidRequest, EmbeddingsExist, InputsNotStored,
    AnchorCountMismatch, EncoderNeedsVectors, EmptyVectors, TooManyInputs, InputTooLong,
    InvalidInput, BadBase64, TooManyJobs, QueueFull.
    """
    _, _, ready = _check(services, context.project, request, inputs, embeddings or {})
    blobs = {"inputs": write_inputs(services, ready)}
    if embeddings:
        blobs["embeddings"] = services.blobs.put(embeddings)
    return submit_job(services, context, JobKind.embed, {**asdict(request), "blobs": blobs})


def run_embed(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: create the set, or add embeddings to it."""
    if "of_store" in job.arguments:
        return store_anchors.run_store_embed(services, job, progress)
    arguments, context = dict(job.arguments), RequestContext.of_job(job)
    blobs = arguments.pop("blobs")
    inputs = read_inputs(services, blobs["inputs"], of="this job")
    sent = blobs.get("embeddings")
    embeddings = services.blobs.get(sent, of="this job") if sent else {}
    request = EmbedRequest(**arguments)
    size, write = _embed(services, context, request, inputs, embeddings, progress)
    encoders = [*embeddings, *request.encoders]
    result = {"anchor_set": request.anchor_set, "size": size, "encoders": encoders}
    return JobResult(result, write=write)


def _embed(
    services: Services,
    context: RequestContext,
    request: EmbedRequest,
    inputs: Inputs | None,
    embeddings: Mapping[str, Tensor],
    on_progress: Callable[[int, int], None],
) -> tuple[int, Callable[[Session], tables.AnchorSetRow]]:
    """Encode the items; return their number, and what adds the rows in a session.

    on_progress  called with the inputs of all encoders that are done, and all
    """
    set_row, encoders, inputs = _check(services, context.project, request, inputs, embeddings)
    values, count = inputs.values, len(inputs.values)
    vectors = dict(embeddings)
    for place, encoder in enumerate(encoders):
        vectors[encoder.name] = encode(
            services,
            context,
            encoder,
            values,
            role=inputs.role,
            on_progress=lambda done, before=place * count: on_progress(  # type: ignore[misc]
                before + done, count * len(encoders)
            ),
        ).vectors
    if set_row is not None:
        [encoder] = encoders
        space = anchor_sets.build_space(
            services, context.project, encoder, vectors[encoder.name], size=count, field="inputs"
        )
        kept = set_row.inputs is not None
        space.is_baseline = kept and inputs == items_of(services, set_row, None, encoder)
        return count, lambda session: anchor_sets.add_space(session, context, set_row, space)
    row = anchor_sets.build_anchor_set(
        services,
        context.project,
        name=request.anchor_set,
        embeddings=vectors,
        inputs=write_inputs(services, inputs) if request.keep else None,
        made_by={encoder.name: encoder.id for encoder in encoders},
    )
    for space in row.spaces:
        space.is_baseline = space.encoder.name in request.encoders
    return count, lambda session: anchor_sets.add_anchor_set(session, context, row)


def _check(
    services: Services,
    project: str,
    request: EmbedRequest,
    inputs: Inputs | None,
    embeddings: Mapping[str, Tensor],
) -> tuple[tables.AnchorSetRow | None, list[tables.EncoderRow], Inputs]:
    """Return the set, None for a new one; the encoders; and the items as the encoders read them."""
    set_row = None
    if request.new:
        assert inputs is not None
        encoders = _find_encoders(services, project, request, inputs, embeddings)
    else:
        [name] = request.encoders
        set_row, encoder = anchor_sets.find_set_and_encoder(
            services, project, anchor_set=request.anchor_set, encoder=name
        )
        encoders, inputs = [encoder], items_of(services, set_row, inputs, encoder)
    values = inputs.values
    for encoder in encoders:
        require_same_vectors(encoder)
        values = check_inputs(encoder, values, limits=services.limits, field="inputs")
    return set_row, encoders, replace(inputs, values=values)


def write_inputs(services: Services, inputs: Inputs) -> str:
    """Store inputs as a blob, and return its hash."""
    files = [value.encode() if isinstance(value, str) else value for value in inputs.values]
    joined = bytearray(b"".join(files))
    return services.blobs.put(
        {
            "bytes": torch.frombuffer(joined, dtype=torch.uint8)
            if joined
            else torch.empty(0, dtype=torch.uint8),
            "ends": torch.tensor([len(file) for file in files]).cumsum(0),
            "are_text": torch.tensor([isinstance(value, str) for value in inputs.values]),
            "are_queries": torch.tensor(inputs.role is InputRole.query),
        }
    )


def read_inputs(services: Services, blob: str, *, of: str) -> Inputs:
    """Return the inputs of a blob."""
    stored = services.blobs.get(blob, of=of)
    joined, ends = stored["bytes"].numpy().tobytes(), [0, *stored["ends"].tolist()]
    files = [joined[start:end] for start, end in pairwise(ends)]
    values: list[Input] = [
        file.decode() if text else file
        for file, text in zip(files, stored["are_text"].tolist(), strict=True)
    ]
    are_queries = bool(stored["are_queries"].all())
    return Inputs(values, InputRole.query if are_queries else InputRole.document)


def _find_encoders(
    services: Services,
    project: str,
    request: EmbedRequest,
    inputs: Inputs,
    embeddings: Mapping[str, Tensor],
) -> list[tables.EncoderRow]:
    """Return the encoders of a new set that encode its items."""
    names, count = request.encoders, len(inputs.values)
    every = [*embeddings, *names]
    if not every or len(set(every)) < len(every) or len(every) > MAX_SET_ENCODERS:
        raise InvalidRequest(
            f"Name 1 to {MAX_SET_ENCODERS} encoders, each once: with vectors, or to embed.",
            field="encoders",
        )
    if not inputs.values:
        raise EmptyVectors("Expected at least one input.", field="inputs")
    for key, vectors in embeddings.items():
        if vectors.shape[0] != count:
            raise UnequalAnchors(
                f"{key!r} has {vectors.shape[0]} vectors, and there are {count} inputs. "
                "Send one for each item.",
                field=f"embeddings.{key}",
            )
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, project, request.anchor_set)
        return [
            resources.by_name(session, tables.EncoderRow, project, each, field="encoders")
            for each in names
        ]


def items_of(
    services: Services,
    row: tables.AnchorSetRow,
    inputs: Inputs | None,
    encoder: tables.EncoderRow,
) -> Inputs:
    """Return the items of a set for an encoder: the client's, those that the set stores, or the
    texts of the store's rows.

    Raises InputsNotStored, AnchorCountMismatch, and the errors of the store.
    """
    if inputs is None and row.inputs is None and row.store_rows is not None:
        texts = store_anchors.read_texts(services, row, encoder)
        if missing := [place for place in range(row.size) if place not in texts]:
            raise InputsNotStored(
                f"{len(missing)} of {row.size} texts of anchor set {row.name!r} cannot be read "
                "from its store as they were: rows were edited or deleted, or may not be sent to "
                "this encoder. Send vectors, or make a new set from the store.",
                field="inputs",
            )
        inputs = Inputs([texts[place] for place in range(row.size)])
    if inputs is None:
        if row.inputs is None:
            raise InputsNotStored(
                f"Anchor set {row.name!r} stores no inputs. Send vectors or inputs, in the "
                "order of its items.",
                field="inputs",
            )
        inputs = read_inputs(services, row.inputs, of=f"anchor set {row.name!r}")
    if len(inputs.values) != row.size:
        raise AnchorCountMismatch(
            f"The set has {row.size} anchors, and the request {len(inputs.values)} inputs. "
            "Send one for each anchor.",
            field="inputs",
        )
    return inputs
