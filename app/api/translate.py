"""/translate and /translators: vectors of one encoder in another encoder's space, and how good that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from app import telemetry
from app.api import wire
from app.api.deps import IdempotencyKey, Reads, Svc, Writes
from app.api.jobs import ASYNC, Job, Prefer, accepted, wants_job
from app.api.problems import documented
from app.api.wire import Body, Encoding, InputsBody, JsonRoute, Name, Vectors
from app.errors import MissingField, NotExactlyOne
from app.maths.methods import Options as MethodOptions
from app.services import translation
from app.services.writes import once
from app.storage import tables

router = APIRouter(tags=["vectors"], route_class=JsonRoute)

Method = Literal["auto", "irp", "irp-ridge", "graded", "procrustes", "ridge"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Options(Body):
    """The method's own options; one that the method does not take is refused."""

    delta: Annotated[Finite, Field(ge=0, le=1)] | None = Field(None, description="irp: pruning threshold, default 0.6")
    omega: Annotated[int, Field(ge=1, le=64)] | None = Field(None, description="irp: subspaces, default 8, at most k")
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(None, description="irp: chooses the subspaces' starts")
    ridge: Annotated[Finite, Field(ge=0, le=1e6)] | None = Field(None, description="irp-ridge, graded, ridge: default 1")
    encode_power: Annotated[Finite, Field(ge=0, le=1)] | None = Field(None, description="graded: default 1")
    decode_power: Annotated[Finite, Field(ge=0, le=1)] | None = Field(None, description="graded: default 0.25")
    renormalise: bool | None = Field(None, description="scale translated directions to unit length: default true")
    keep_norms: bool | None = Field(
        None, description="a vector farther from its mean than usual stays so: for decoders; default false"
    )

    def given(self) -> MethodOptions:
        return self.model_dump(exclude_none=True)


class PairRequest(Body):
    """Which two spaces of which anchor set, and how to fit between them."""

    source: Name | None = None
    target: Name
    anchor_set: Name
    method: Method = "auto"
    options: Options = Options()

    def pair(self) -> translation.Request:
        return translation.Request(self.source, self.target, self.anchor_set, self.method, self.options.given())


class TranslatorRequest(PairRequest):
    """Which two spaces of which anchor set, and how to fit between them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"source": "old", "target": "new", "anchor_set": "faq"}]})

    source: Name


class TranslateRequest(PairRequest, InputsBody):
    """Exactly one of `vectors` and `inputs` of the source encoder, or `relative` vectors made with `relative_power`.

    Relative vectors need no `source`: they are decoded by what the target's anchors say alone.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"source": "old", "target": "new", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}]}
    )

    vectors: Vectors = None
    relative: Vectors = None
    relative_power: Annotated[Finite, Field(ge=0, le=1)] | None = None
    encoding: Encoding = "float"


class Flag(BaseModel):
    """Something to know about one row of an answer: it equals the anchors' mean, or lies in directions that they do not span;
    or the encoder has read only the beginning of its input.
    """

    row: int
    code: Literal["equals-anchor-mean", "outside-anchors", "input-truncated"]


class TranslateAnswer(BaseModel):
    """`count` vectors of `dim` numbers in the target encoder's units; a flagged row is the target's mean."""

    vectors: Vectors
    count: int
    dim: int
    method: str
    options: dict[str, Any]
    translator: str | None = Field(description="null for relative vectors: their source is not known")
    flags: list[Flag]


class Quality(BaseModel):
    """Numbers over n held-out anchors, vectors centred on the anchors' mean; recall and Jaccards at k neighbours."""

    n: int
    k: int
    cosine: float
    mrr: float
    recall: float
    jaccard_target: float
    jaccard_own: float


class HeldOut(BaseModel):
    """Every anchor translated by a fit that never saw it, beside source vectors used as they are."""

    folds: int
    translated: Quality
    do_nothing: Quality


class SpaceInReport(BaseModel):
    """One of the two spaces."""

    encoder: str
    dim: int
    rank: int
    condition: float


class Report(BaseModel):
    """What to expect of a translator."""

    anchors: int
    held_out: HeldOut | None = Field(description="null below 10 distinct anchors, or where a fold leaves only one")
    cka: float | None = Field(description="debiased linear CKA of the two spaces")
    source: SpaceInReport
    target: SpaceInReport


class Translator(BaseModel):
    """A fitted translator and its report."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "tr_2f6c..."}]})

    id: str
    source: str
    target: str
    anchor_set: str
    method: str
    options: dict[str, Any]
    report: Report
    created_at: datetime


def flags(at_mean: Tensor | None, outside: Tensor | None = None, *, truncated: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The rows of an answer that there is something to know about, in their order."""
    codes = {"equals-anchor-mean": at_mean, "outside-anchors": outside}
    found = [
        {"row": row, "code": code}
        for code, rows in codes.items()
        if rows is not None
        for row in rows.nonzero().flatten().tolist()
    ]
    found += [{"row": row, "code": "input-truncated"} for row in truncated]
    return sorted(found, key=lambda flag: flag["row"])


def describe(row: tables.Translator) -> Translator:
    return Translator(
        id=row.content,
        source=row.source.encoder.name,
        target=row.target.encoder.name,
        anchor_set=row.source.anchor_set.name,
        method=row.method,
        options=row.options,
        report=Report.model_validate(row.report),
        created_at=row.created_at,
    )


@router.post(
    "/translate",
    responses={200: {"model": TranslateAnswer}, **documented(400, 404, 409, 413, 415, 422)},
    response_model=None,
)
def translate(body: TranslateRequest, services: Svc, project: Reads) -> Response:
    """Translate vectors, inputs or relative vectors into the target encoder's space."""
    answer = _translate(body, services, project)
    translated = answer.translated
    count, dim = translated.vectors.shape
    telemetry.BATCH_VECTORS.labels("translate").observe(count)
    return wire.respond(
        {
            "vectors": wire.encode(translated.vectors, body.encoding),
            "count": count,
            "dim": dim,
            "method": answer.method,
            "options": dict(answer.options),
            "translator": answer.translator,
            "flags": flags(translated.at_mean, translated.outside, truncated=answer.truncated),
        }
    )


def _translate(body: TranslateRequest, services: Svc, project: str) -> translation.Translation:
    given = [name for name in ("vectors", "inputs", "relative") if getattr(body, name) is not None]
    if len(given) != 1:
        raise NotExactlyOne("send exactly one of vectors, inputs and relative", field=given[1] if given else "vectors")
    if body.relative is None:
        if body.relative_power is not None:
            raise NotExactlyOne("relative_power belongs to relative vectors", field="relative_power")
        if body.source is None:
            raise MissingField("vectors and inputs need a source, the encoder they come from", field="source")
        vectors = wire.optional_matrix(body.vectors, "vectors")
        return translation.translate(services, project, body.pair(), vectors=vectors, inputs=body.given_inputs())
    return translation.translate_relative(
        services,
        project,
        body.pair(),
        coordinates=wire.matrix(body.relative, "relative"),
        relative_power=body.relative_power or 0.0,
    )


@router.post(
    "/translators",
    status_code=201,
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_translator(
    body: TranslatorRequest,
    response: Response,
    services: Svc,
    project: Writes,
    _: IdempotencyKey = None,
    prefer: Prefer = None,
) -> Translator | Job:
    """Fit a translator and measure it on held-out anchors, without translating anything.

    Large sets take a while: with `Prefer: respond-async` a worker does it, and its job's result names the translator.
    """
    if wants_job(prefer):
        job = once(services, project, tables.Job, lambda: translation.request_translator(services, project, body.pair()))
        return accepted(response, job)

    def make() -> tables.Translator:
        request = body.pair()
        source, target = translation.pair(services, project, request)
        fitted = translation.fit(services, project, source, target, request)
        return translation.report(services, project, fitted.id, between=(source.id, target.id))

    row = once(services, project, tables.Translator, make)
    response.headers["Location"] = f"/translators/{row.content}"
    return describe(translation.report(services, project, row.content, between=(row.source_id, row.target_id)))


@router.get("/translators/{id}", responses=documented(404, 422))
def get_translator(id: Annotated[str, Path(pattern=r"^tr_[0-9a-f]{32}$")], services: Svc, project: Reads) -> Translator:
    """A translator's quality report; every id that /translate or /stitch answered can be asked about."""
    return describe(translation.report(services, project, id))
