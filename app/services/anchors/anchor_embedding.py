"""Encodes the items of anchor sets, and stores them, so that encoders can be added later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from app.encoders.base import Input
from app.errors import AnchorCountMismatch, EmptyVectors, InputsNotStored, InvalidRequest
from app.services.anchors import anchor_sets
from app.services.context import Services
from app.services.encoders.encoding import Inputs, check_inputs, encode, spec_of
from app.services.jobs.progress import Progress
from app.services.jobs.runner import JobResult
from app.services.jobs.submission import submit_job
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources
from app.types import InputRole, JobKind

#: most encoders of one request
MOST_SET_ENCODERS = 64


def create_from_inputs(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    inputs: Inputs,
    encoders: Sequence[str],
    keep: bool,
) -> tables.AnchorSetRow:
    """Create a set, and encode its items now.

    Raises the errors of `request_anchor_set` and `encode`.
    """
    rows, inputs = _find_encoders(services, context.project, name, inputs, encoders)
    row = _encode_set(services, context, name, inputs, rows, keep, lambda done, total: None)
    with services.db.transaction() as session:
        anchor_sets.add_anchor_set(session, context, row)
    return row


def request_anchor_set(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    inputs: Inputs,
    encoders: Sequence[str],
    keep: bool,
) -> tables.JobRow:
    """Check the request, and queue a job that creates the set.

    Raises NameTaken, EncoderNotFound, InvalidRequest, EncoderNeedsVectors, EmptyVectors,
    TooManyInputs, InputTooLong, InvalidInput, BadBase64, TooManyJobs, QueueFull.
    """
    _, inputs = _find_encoders(services, context.project, name, inputs, encoders)
    arguments = {"anchor_set": name, "new": True, "encoders": list(encoders), "keep": keep}
    return _submit(services, context, arguments, inputs)


def add_from_inputs(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    inputs: Inputs | None,
) -> tables.AnchorSetRow:
    """Add an encoder's embeddings to a set, encoded now from the inputs or from the stored ones.

    Raises the not-found errors, EmbeddingsExist, InputsNotStored, AnchorCountMismatch, and the
    errors of `encode`.
    """
    set_row, encoder_row, ready = _check_addition(
        services, context.project, anchor_set, encoder, inputs
    )
    vectors = encode_items(services, context, encoder_row, ready)
    return anchor_sets.add_embeddings(
        services,
        context,
        anchor_set=set_row.name,
        encoder=encoder,
        vectors=vectors,
        field="inputs",
        made_by=encoder_row.id,
    )


def request_addition(
    services: Services,
    context: RequestContext,
    *,
    anchor_set: str,
    encoder: str,
    inputs: Inputs | None,
) -> tables.JobRow:
    """Check the request, and queue a job that adds an encoder's embeddings to a set.

    Raises the errors of `add_from_inputs` that need no encoding, TooManyJobs, QueueFull.
    """
    _, _, ready = _check_addition(services, context.project, anchor_set, encoder, inputs)
    return _submit(
        services, context, {"anchor_set": anchor_set, "new": False, "encoders": [encoder]}, ready
    )


def run_embed(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: create the set, or add embeddings to it."""
    arguments, context = job.arguments, RequestContext.of_job(job)
    inputs = read_inputs(services, arguments["blobs"]["inputs"], of="this job")

    if arguments["new"]:
        rows, inputs = _find_encoders(
            services, job.project, arguments["anchor_set"], inputs, arguments["encoders"]
        )
        row = _encode_set(
            services,
            context,
            arguments["anchor_set"],
            inputs,
            rows,
            arguments["keep"],
            progress,
        )
        return JobResult(
            _describe_result(row, arguments),
            write=lambda session: anchor_sets.add_anchor_set(session, context, row),
        )
    [encoder] = arguments["encoders"]
    set_row, encoder_row = anchor_sets.find_set_and_encoder(
        services, job.project, anchor_set=arguments["anchor_set"], encoder=encoder
    )
    total = len(inputs.values)
    vectors = encode_items(
        services, context, encoder_row, inputs, on_progress=lambda done: progress(done, total)
    )
    space = anchor_sets.build_space(
        services, job.project, encoder_row, vectors, size=set_row.size, field="inputs"
    )
    return JobResult(
        _describe_result(set_row, arguments),
        write=lambda session: anchor_sets.add_space(session, context, set_row, space),
    )


def encode_items(
    services: Services,
    context: RequestContext,
    encoder: tables.EncoderRow,
    inputs: Inputs,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Return the vectors (n, d) of items, each encoded in its role. Raises as `encode`."""
    values, roles = inputs.values, inputs.roles
    if roles is None:
        return encode(
            services, context, encoder, values, role=inputs.role, on_progress=on_progress
        ).vectors
    vectors = torch.empty(len(values), encoder.dim)
    before = 0
    for role in InputRole:
        rows = [row for row, each in enumerate(roles) if each == role]
        if rows:
            vectors[rows] = encode(
                services,
                context,
                encoder,
                [values[row] for row in rows],
                role=role,
                on_progress=lambda done, before=before: on_progress(before + done),  # type: ignore[misc]
            ).vectors
        before += len(rows)
    return vectors


def write_inputs(services: Services, inputs: Inputs) -> str:
    """Store inputs as a blob, and return its hash. Raises StorageUnavailable."""
    files = [value.encode() if isinstance(value, str) else value for value in inputs.values]
    joined = bytearray(b"".join(files))
    return services.blobs.put(
        {
            "bytes": torch.frombuffer(joined, dtype=torch.uint8)
            if joined
            else torch.empty(0, dtype=torch.uint8),
            "ends": torch.tensor([len(file) for file in files]).cumsum(0),
            "are_text": torch.tensor([isinstance(value, str) for value in inputs.values]),
            "are_queries": torch.tensor(
                inputs.role is InputRole.query
                if inputs.roles is None
                else [role == InputRole.query for role in inputs.roles]
            ),
        }
    )


def read_inputs(services: Services, blob: str, *, of: str) -> Inputs:
    """Return the inputs of a blob. Raises BlobMissing, which names the owner `of`,
    StorageUnavailable.
    """
    stored = services.blobs.get(blob, of=of)
    joined, ends = stored["bytes"].numpy().tobytes(), [0, *stored["ends"].tolist()]
    files = [joined[start:end] for start, end in pairwise(ends)]
    values: list[Input] = [
        file.decode() if text else file
        for file, text in zip(files, stored["are_text"].tolist(), strict=True)
    ]
    names = InputRole.document, InputRole.query
    queries = stored["are_queries"].tolist()  # one for all, or a list with one for each item
    if isinstance(queries, list):
        return Inputs(values, roles=[names[each].value for each in queries])
    return Inputs(values, names[queries])


def _find_encoders(
    services: Services, project: str, name: str, inputs: Inputs, encoders: Sequence[str]
) -> tuple[list[tables.EncoderRow], Inputs]:
    """Return the encoders' rows, and the inputs as they read them."""
    if not encoders or len(set(encoders)) < len(encoders) or len(encoders) > MOST_SET_ENCODERS:
        raise InvalidRequest(
            f"Expected 1 to {MOST_SET_ENCODERS} different encoders.", field="encoders"
        )
    if not inputs.values:
        raise EmptyVectors("Expected at least one input.", field="inputs")
    anchor_sets.check_roles(inputs.roles, len(inputs.values))
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, project, name)
        rows = [
            resources.by_name(session, tables.EncoderRow, project, each, field="encoders")
            for each in encoders
        ]
    values = inputs.values
    for row in rows:
        spec_of(row)
        values = check_inputs(row, values, limits=services.limits, field="inputs")
    return rows, replace(inputs, values=values)


def _encode_set(
    services: Services,
    context: RequestContext,
    name: str,
    inputs: Inputs,
    encoders: Sequence[tables.EncoderRow],
    keep: bool,
    on_progress: Callable[[int, int], None],
) -> tables.AnchorSetRow:
    """Encode the items; return the row of the new set, not yet in a session.

    on_progress  called with the inputs of all encoders that are done, and all
    """
    count = len(inputs.values)
    embeddings: dict[str, Tensor] = {}
    for place, row in enumerate(encoders):
        before = place * count
        embeddings[row.name] = encode_items(
            services,
            context,
            row,
            inputs,
            on_progress=lambda done, before=before: on_progress(
                before + done, count * len(encoders)
            ),  # type: ignore[misc]
        )
    stored = write_inputs(services, inputs) if keep else None
    made_by = {row.name: row.id for row in encoders}
    return anchor_sets.build_anchor_set(
        services,
        context.project,
        name=name,
        embeddings=embeddings,
        inputs=stored,
        made_by=made_by,
        roles=inputs.roles,
    )


def _check_addition(
    services: Services, project: str, anchor_set: str, encoder: str, inputs: Inputs | None
) -> tuple[tables.AnchorSetRow, tables.EncoderRow, Inputs]:
    set_row, encoder_row = anchor_sets.find_set_and_encoder(
        services, project, anchor_set=anchor_set, encoder=encoder
    )
    if inputs is None:
        if set_row.inputs is None:
            raise InputsNotStored(
                f"Anchor set {anchor_set!r} stores no inputs. Send vectors or inputs, in the "
                "order of its items.",
                field="inputs",
            )
        inputs = read_inputs(services, set_row.inputs, of=f"anchor set {set_row.name!r}")
    if len(inputs.values) != set_row.size:
        raise AnchorCountMismatch(
            f"The set has {set_row.size} anchors, and the request {len(inputs.values)} inputs. "
            "Send one for each anchor.",
            field="inputs",
        )
    spec_of(encoder_row)
    if set_row.roles is not None:
        inputs = replace(inputs, roles=set_row.roles)
    values = check_inputs(encoder_row, inputs.values, limits=services.limits, field="inputs")
    return set_row, encoder_row, replace(inputs, values=values)


def _submit(
    services: Services, context: RequestContext, arguments: dict[str, Any], inputs: Inputs
) -> tables.JobRow:
    return submit_job(
        services,
        context,
        JobKind.embed,
        {**arguments, "blobs": {"inputs": write_inputs(services, inputs)}},
    )


def _describe_result(row: tables.AnchorSetRow, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"anchor_set": row.name, "size": row.size, "encoders": arguments["encoders"]}
