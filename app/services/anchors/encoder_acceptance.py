"""Accepts the vectors that a changed encoder makes now, under a new name or under its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.orm import Session
from torch import Tensor

from app.errors import EncoderChanged, InputsNotStored, WrongState
from app.services.access.audit import record_audit
from app.services.anchors import anchor_embedding, anchor_sets, growth, store_anchors
from app.services.anchors.encoder_watch import require_runnable
from app.services.context import Services
from app.services.encoders.encoding import load_current_model, spec_of
from app.services.encoders.native_vectors import fingerprint_of
from app.services.jobs.progress import Progress
from app.services.jobs.runner import JobResult
from app.services.jobs.submission import submit_job
from app.services.name_lookup import refuse_in_use
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import native_vectors, resources, stores
from app.types import EncoderKind, JobKind

#: sets, their new vectors, and the blobs of the rows of stores that they come from
Made = list[tuple[tables.AnchorSetRow, Tensor, str | None]]


def accept_later(
    services: Services, context: RequestContext, name: str, new_name: str | None
) -> tables.JobRow:
    """Queue a job that embeds the anchors of a changed encoder by the model as it is now.

    new_name  of the encoder that has the new vectors; the old name keeps the old ones. None: the
              new vectors replace the old ones

    Raises EncoderNotFound, EncoderNeedsVectors, WrongState, NameTaken, InUse, and the errors of
    `submit_job`.
    """
    _check(services, context.project, name, new_name)
    arguments = {"encoder": name, "new_name": new_name}
    return submit_job(services, context, JobKind.accept, arguments)


def run_accept(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job. Sets whose inputs cannot be read are named in the result of a new name.

    Raises InputsNotStored without any other: nothing would map old vectors to new ones.
    """
    context, new_name = RequestContext.of_job(job), job.arguments["new_name"]
    old, sets = _check(services, job.project, job.arguments["encoder"], new_name)
    now = _describe_now(services, old, new_name)
    made: Made = []
    skipped, why = [], ""
    before, total = 0, sum(row.size for row in sets)
    for row in sets:
        try:
            inputs = anchor_embedding.items_of(services, row, None, old)
        except InputsNotStored as error:
            if new_name is None:
                raise
            skipped.append(row.name)
            why = error.detail
            continue

        def report(done: int, before: int = before) -> None:
            progress(before + done, total)

        vectors = anchor_embedding.encode_items(services, context, now, inputs, on_progress=report)
        before += row.size
        kept = store_anchors.add_encoders(services, row, [now.id])
        made.append((row, vectors, kept))
    if skipped and not made:
        raise InputsNotStored(
            f"No anchor set of encoder {old.name!r} can be embedded again, so nothing would map "
            f"old vectors to new ones. {why} For vectors of your own, register the model as it is "
            "now with POST /encoders.",
            field="new_name",
        )
    names = [row.name for row, *_ in made]
    result = {"encoder": now.name, "anchor_sets": names, "skipped": skipped}
    write = _write_new if new_name is not None else _write_same
    return JobResult(result, write=write(services, context, old, now, made))


def _check(
    services: Services, project: str, name: str, new_name: str | None
) -> tuple[tables.EncoderRow, list[tables.AnchorSetRow]]:
    """Return the changed encoder, and the sets that have its vectors."""
    with services.db.transaction() as session:
        old = resources.by_name(session, tables.EncoderRow, project, name)
        require_runnable(old)
        if not old.has_changed:
            raise WrongState(
                f"No check has found a change of encoder {name!r}. POST /encoders/{name}/check "
                "looks now.",
                field="name",
            )
        names = [each.anchor_set.name for each in resources.spaces_of_encoder(session, old)]
        sets = [resources.whole_set(session, project, each) for each in names]
        if new_name is not None:
            resources.require_free(session, tables.EncoderRow, project, new_name)
            resources.require_free(session, tables.AliasRow, project, new_name)
            return old, sets
        _refuse_users(session, old, [each for each in sets if each.inputs or each.store_rows])
    return old, sets


def _refuse_users(
    session: Session, encoder: tables.EncoderRow, embedded: Iterable[tables.AnchorSetRow]
) -> None:
    """Raises InUse if anything but the sets embedded again holds vectors of the encoder."""
    users = resources.users_of_encoder(session, encoder)
    users += stores.stores_of_encoder(session, encoder, with_ended=False)
    ours = {f"anchor set {each.name!r}" for each in embedded}
    refuse_in_use(
        f"encoder {encoder.name!r}",
        [each for each in users if each not in ours],
        "They hold old vectors, which the service cannot embed again. Send `new_name`.",
    )


def _describe_now(
    services: Services, old: tables.EncoderRow, new_name: str | None
) -> tables.EncoderRow:
    """Return the encoder as it is now, not in a session; another one for a new name."""
    spec = spec_of(old)
    if services.encoders.hash_folder(spec) is not None:
        spec = replace(spec, revision=None)  # the digest of files that are gone
    services.encoders.forget(spec)
    model = load_current_model(services, spec)
    if new_name is None and model.dim != old.dim:
        raise EncoderChanged(
            f"The model now makes vectors of {model.dim} dimensions, not {old.dim}. Send "
            "`new_name`.",
            field="new_name",
        )
    return tables.EncoderRow(
        id=old.id if new_name is None else tables.new_id(),
        project=old.project,
        name=new_name or old.name,
        kind=old.kind,
        dim=model.dim,
        model=old.model,
        revision=spec.revision,
        modality=old.modality,
        options=old.options,
        identity=model.identity.members,
        accepted_at=tables.now(),
    )


def _write_new(
    services: Services,
    context: RequestContext,
    old: tables.EncoderRow,
    now: tables.EncoderRow,
    made: Made,
) -> Callable[[Session], None]:
    """Add the new encoder and its spaces; the old one becomes external, as nothing makes its
    vectors any more.
    """
    build = partial(anchor_sets.build_space, services, old.project, now, field="inputs")
    built = [(row, build(vectors, size=row.size), kept) for row, vectors, kept in made]

    def write(session: Session) -> None:
        resources.require_free(session, tables.EncoderRow, old.project, now.name)
        session.add(now)
        for row, space, kept in built:
            space.is_baseline = True
            current = anchor_sets.add_space(session, context, row, space)
            current.store_rows = kept
        retired: dict[str, Any] = {"kind": EncoderKind.external, "model": None, "revision": None}
        _change(session, context, old, **retired, options={}, identity=None)
        record_audit(session, context, "create", "encoder", now.name)
        services.names.forget()

    return write


def _write_same(
    services: Services,
    context: RequestContext,
    old: tables.EncoderRow,
    now: tables.EncoderRow,
    made: Made,
) -> Callable[[Session], None]:
    """Replace the encoder's spaces, in the next version of each set."""
    built = [
        (row, [_space(services, each, now, vectors) for each in row.spaces], kept)
        for row, vectors, kept in made
    ]

    def write(session: Session) -> None:
        _refuse_users(session, old, [row for row, *_ in built])
        for row, replaced, kept in built:
            current = growth.replace_spaces(session, context, row, replaced)
            for space in replaced:
                if space.encoder_id == now.id:  # the sample is of the old vectors
                    space.sample = space.sample_size = space.store_size = None
            current.version, current.store_rows = row.version + 1, kept
            record_audit(session, context, "embed", "anchor-set", row.name)
        kept_columns = ("identity", "accepted_at", "revision")
        _change(session, context, old, **{each: getattr(now, each) for each in kept_columns})
        services.names.forget()

    return write


def _space(
    services: Services, before: tables.SpaceRow, now: tables.EncoderRow, vectors: Tensor
) -> tables.SpaceRow:
    """Return a space of the next version: of the new vectors, or as it was."""
    if before.encoder_id == now.id:
        size = before.anchor_set.size
        space = anchor_sets.build_space(
            services, now.project, before.encoder, vectors, size=size, field="inputs"
        )
        space.is_baseline = True
        return space
    return tables.SpaceRow(
        project=before.project,
        encoder_id=before.encoder_id,
        blob=before.blob,
        health=before.health,
        is_baseline=before.is_baseline,
    )


def _change(
    session: Session, context: RequestContext, old: tables.EncoderRow, **values: Any
) -> None:
    """Change the row of the encoder, whose finding is settled. Raises WrongState if it is."""
    row = session.get_one(tables.EncoderRow, old.id, with_for_update=True, populate_existing=True)
    if not row.has_changed:
        raise WrongState(f"The change of encoder {old.name!r} was settled meanwhile.", field="name")
    native_vectors.delete_of_space(session, old.project, fingerprint_of(row))
    for name, value in {**values, "last_check": None}.items():
        setattr(row, name, value)
    record_audit(session, context, "accept", "encoder", old.name)
