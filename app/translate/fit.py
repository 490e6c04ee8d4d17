"""Fits translators between the spaces that requests name, and stores how they were fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256

import orjson
from safetensors.torch import save
from sqlalchemy.orm import Session

from app.access.audit import record_audit
from app.anchors import made_pairs
from app.context import RequestContext, Services
from app.db import resources, tables
from app.db.cache import Key, NameKey
from app.db.redis import dataclass_codec
from app.errors import Conflict, UnknownOption
from app.jobs.progress import Progress
from app.jobs.submission import submit_job
from app.jobs.worker import JobResult
from app.maths.quality import cost
from app.maths.translators import methods
from app.maths.translators.decoder import Decoder
from app.maths.translators.translator import Translator, content_hash
from app.translate import estimate, fit_anchors, fit_queue, queries
from app.translate.maps import FitRequest, ServedMap, SpacePair, canonical_json
from app.translate.warnings import AnswerWarning
from app.types import JobKind

TRANSLATOR = dataclass_codec(Translator, decoder=Decoder)

#: cache size of an id with its key
CACHED_ID_BYTES = 1024


def fit(
    services: Services,
    context: RequestContext,
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    request: FitRequest,
    warnings: Sequence[AnswerWarning] = (),
) -> ServedMap:
    """Return the cached translator, or fit one and store its row.

    Raises UnknownOption, InvalidOption, Overloaded, FitQueued, and Conflict when a space was
    deleted meanwhile.
    """
    anchors = fit_anchors.find_anchors(services, source, target)
    method, options = choose_method(source, target, request, anchors)

    def make() -> Translator:
        x, y = fit_anchors.fitted_spaces(services, source, target, anchors)
        with services.take(services.turns.fits, source.project):
            return methods.fit(method, x, y, options)

    fit_key: Key = (method, canonical_json(options), *anchors.key)
    key: Key = ("translator", source.blob, target.blob, *fit_key)
    translator = fit_queue.make_or_queue(
        services,
        context,
        fit_queue.Fit(
            arguments={**asdict(request), "relative_power": None},
            seconds=_seconds(method, source, target, options),
            key=key,
            make=make,
            codec=TRANSLATOR,
        ),
    )

    def write_row() -> str:
        row = tables.TranslatorRow(
            project=context.project,
            source_id=source.id,
            target_id=target.id,
            method=method,
            options=dict(options),
            weights=fit_anchors.store_anchors(services, anchors),
        )
        row.content = public_id(translator, row)
        try:
            _add_row(services, context, row)
        except Conflict:  # another process was faster, unless a space was deleted
            _add_row(services, context, row)
        return row.content

    # The key has the spaces' rows, not their content: a set that was created again needs new rows.
    # It has the day, because a write also records the translator's last use.
    content = services.cache.get_or_make(
        ("written", source.id, target.id, *fit_key, tables.now().date()),
        write_row,
        lambda _: CACHED_ID_BYTES,
    )
    return ServedMap(
        translator.dims,
        translator,
        key,
        method=method,
        options=options,
        id=content,
        pair=(source, target),
        warnings=warnings,
    )


def check_options(request: FitRequest, *, anchors: int) -> methods.Options:
    """Return all options of a request's method, or those of `auto`, without a fit."""
    if request.method == "auto":
        for option in request.options:
            if option not in methods.OUTPUT_OPTIONS:
                raise UnknownOption(
                    f"`method: auto` chooses `{option}` itself. Remove it, or name a method.",
                    field=f"options.{option}",
                )
        return request.options
    return methods.resolve(request.method, request.options, anchors=anchors)


def _seconds(
    method: str, source: tables.SpaceRow, target: tables.SpaceRow, options: methods.Options
) -> float:
    """The seconds of one core that a fit takes."""
    dims = source.encoder.dim, target.encoder.dim
    return cost.fit_seconds(method, source.anchor_set.size, dims, options)


def read_file(
    services: Services,
    context: RequestContext,
    content: str,
) -> bytes:
    """Return the safetensors file of a translator, by its id.

    Raises NotFound, Overloaded, TooMuchAtOnce, and Conflict if its anchors have other
    weights today.
    """
    row = estimate.find_translator(services, context.project, content)
    request = FitRequest(
        row.source.encoder.name,
        row.target.encoder.name,
        row.source.anchor_set.name,
        row.method,
        row.options,
    )
    fitted = fit(services, context, row.source, row.target, request)
    if fitted.id != content:
        raise Conflict(
            f"The translator {content!r} was fitted with other weights of its anchors. Fit it "
            "again with `POST /translators`.",
            field="id",
        )
    context.reserve_bytes(2 * fitted.translator.nbytes)  # tensors copied into one file
    return _as_safetensors(row, fitted.translator)


def _as_safetensors(row: tables.TranslatorRow, translator: Translator) -> bytes:
    decoder = translator.decoder
    tensors = {
        "source_mean": translator.source_mean,
        "matrix": decoder.matrix,
        "target_mean": decoder.mean,
    }
    if translator.landmarks is not None:
        tensors["landmarks"] = translator.landmarks
    about = {
        "id": row.content,
        "source": row.source.encoder.name,
        "target": row.target.encoder.name,
        "anchor_set": row.source.anchor_set.name,
        "method": row.method,
        "scale": decoder.scale,
        "renormalise": decoder.renormalise,
        "kernel": decoder.kernel,
        "kept_scale": translator.kept_scale,
    }
    return save(tensors, {"anchorage": orjson.dumps(about).decode()})


def request_translator(
    services: Services, context: RequestContext, request: FitRequest
) -> tables.JobRow:
    """Queue a job that fits and measures a translator.

    Raises the not-found errors, UnknownOption, InvalidOption, TooManyJobs, QueueFull.
    """
    source, target = find_pair(services, context.project, request)
    method, options = choose_method(source, target, request)
    fit_queue.require_short(_seconds(method, source, target, options))
    return submit_job(services, context, JobKind.translator, asdict(request))


def run_translator(services: Services, job: tables.JobRow, progress: Progress) -> JobResult:
    """Run the job: fit the translator, and write its report."""
    request, context = FitRequest(**job.arguments), RequestContext.of_job(job)
    progress(0, 2)
    source, target = find_pair(services, job.project, request)
    fitted = fit(services, context, source, target, request)
    progress(1, 2)
    estimate.require_estimate(
        estimate.report_of(services, fitted), request.min_quality, request.index
    )
    progress(2, 2)
    return JobResult({"translator": fitted.id})


def choose_method(
    source: tables.SpaceRow,
    target: tables.SpaceRow,
    request: FitRequest,
    anchors: fit_anchors.FitAnchors = fit_anchors.ALL_ANCHORS,
) -> tuple[str, methods.Options]:
    """Return the method that fits a request, and all its options.

    Raises UnknownOption and InvalidOption.
    """
    size = source.anchor_set.size
    options = check_options(request, anchors=size)
    if request.method != "auto":
        return request.method, options
    made = made_pairs.estimate_of(source.anchor_set)
    if made is not None:
        return made_pairs.made_method(options, anchors=size, seeds=made["seeds"])
    distinct = size - max(int(space.health["duplicate_count"]) for space in (source, target))
    if anchors.counted is not None:
        distinct = min(distinct, int(anchors.counted.sum()))
    chosen = methods.usual_method(distinct)
    own = {"decode_power": 0.0} if request.numbers else {}
    return chosen, methods.resolve(chosen, {**own, **options}, anchors=size)


def find_pair(
    services: Services, project: str, request: FitRequest
) -> tuple[tables.SpaceRow, tables.SpaceRow]:
    """Return both spaces of a request. Raises the not-found errors and AnchorsNotEmbedded."""
    assert request.source is not None
    return resolve(services, request.pair_name(project)).both


def resolve(services: Services, name: NameKey) -> SpacePair:
    """Return the pair of that name, from memory where possible.

    Raises the not-found errors, AnchorsNotEmbedded, and Conflict when the set was replaced
    meanwhile.
    """
    return services.names.find_or(name, lambda: look_up(services, name))


def look_up(services: Services, name: NameKey) -> SpacePair:
    """Return a pair of spaces from the database. Raises NotFound, and Conflict."""
    anchor_set, source, target = name.names
    assert anchor_set is not None
    fields = {"source" if target is not None else "encoder": source, "target": target}
    encoders = {field: encoder for field, encoder in fields.items() if encoder is not None}
    with services.db.transaction() as session:
        by_encoder = resources.spaces_of(session, name.project, anchor_set, set(encoders.values()))
        if len(by_encoder) < len(set(encoders.values())):
            for field, encoder in encoders.items():
                find_space_row(session, name.project, anchor_set, encoder, field)
            raise Conflict(
                f"Anchor set {anchor_set!r} was replaced by another of that name. Try again.",
                field="anchor_set",
            )
    return SpacePair(by_encoder.get(source or ""), by_encoder.get(target or ""))


def find_space_row(
    session: Session, project: str, anchor_set: str, encoder: str, field: str
) -> tables.SpaceRow:
    set_row = resources.by_name(
        session, tables.AnchorSetRow, project, anchor_set, field="anchor_set"
    )
    return resources.space(
        session,
        set_row,
        resources.by_name(session, tables.EncoderRow, project, encoder, field=field),
    )


def _add_row(services: Services, context: RequestContext, row: tables.TranslatorRow) -> None:
    """Add the row, or record the use of the existing one."""
    with services.db.transaction() as session:
        if not queries.touch(session, row, now=tables.now()):
            session.add(row)
            record_audit(session, context, "create", "translator", row.content)


def public_id(translator: Translator, row: tables.TranslatorRow) -> str:
    """A hash of content and fit: equal matrices of two methods have two reports."""
    # Of bytes, so that the ids of earlier rows stay what they were.
    text = f"{content_hash(translator)} {row.method} {canonical_json(row.options).encode()!r}"
    if row.weights is not None:
        text += f" None {row.weights}"
    return "tr_" + sha256(text.encode()).hexdigest()[:32]
