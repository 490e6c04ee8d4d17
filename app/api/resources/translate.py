"""/translate and /translators: vectors of one encoder in another encoder's space, and how good that is."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from app.api.codecs import npy
from app.api.http import answers, streams
from app.api.http.bodies import Call, json_body, vector_call
from app.api.http.deps import IdempotencyKey, Reads, Svc, Writes
from app.api.http.openapi_bodies import BULK
from app.api.http.problems import documented
from app.api.http.streams import Plan
from app.api.resources.jobs import ASYNC, Job, Prefer, accepted, wants_job
from app.api.schemas.confidence import Confidence, columns
from app.api.schemas.fields import BODY_ROWS, Body, Dtype, Encoding, InputsBody, Name, Vectors
from app.errors import InvalidRequest, MissingField, NotExactlyOne
from app.maths.quality.candidates import Preference
from app.maths.translators.methods import Options as MethodOptions
from app.maths.translators.translator import ProductPrecision
from app.observability import metrics
from app.services.access.idempotency import idempotent
from app.services.context import Services
from app.services.serving import plans, products
from app.services.translators import confidence, contracts, translators
from app.storage import tables

router = APIRouter(tags=["vectors"])

BATCH = metrics.BATCH_VECTORS.labels("translate")

Method = Literal[
    "auto",
    "irp",
    "irp-ridge",
    "graded",
    "procrustes",
    "ridge",
    "toward-procrustes",
    "reduced-rank",
    "canonical",
    "affine",
]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Options(Body):
    """The method's own options; one that the method does not take is refused."""

    delta: Annotated[Finite, Field(ge=0, le=1)] | None = Field(
        None, description="irp: pruning threshold, default 0.6"
    )
    omega: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="irp: subspaces, default 8, at most k"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="irp: chooses the subspaces' starts"
    )
    ridge: Annotated[Finite, Field(ge=0, le=1e6)] | None = Field(
        None,
        description="irp-ridge: default 1; the others choose it from the anchors: graded from each space's own",
    )
    encode_power: Annotated[Finite, Field(ge=0, le=1)] | None = Field(
        None, description="graded: default 1"
    )
    decode_power: Annotated[Finite, Field(ge=0, le=1)] | None = Field(
        None, description="graded: default 0.25"
    )
    centre: bool | None = Field(
        None, description="about the anchors' mean, or about zero; default true"
    )
    rank: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="reduced-rank: default 99 % of the map"
    )
    correlation_power: Annotated[Finite, Field(ge=0, le=1)] | None = Field(
        None, description="canonical: default 0.5"
    )
    dewhiten: Annotated[Finite, Field(ge=0, le=1)] | None = Field(
        None, description="canonical: default 0.5"
    )
    renormalise: bool | None = Field(
        None, description="scale translated directions to unit length: default true"
    )
    keep_norms: bool | None = Field(
        None,
        description="a vector farther from its mean than usual stays so: for decoders; default false",
    )

    def given(self) -> MethodOptions:
        return self.model_dump(exclude_none=True)


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class MinQuality(Body):
    """The least that a translator must promise, measured on held-out anchors, or the request is refused with what it does."""

    recall: Share | None = Field(
        None,
        description="share of the nearest that a native query finds: 10, or fewer below 105 anchors, see the promise",
    )
    recall_1: Share | None = Field(None, description="how often the very nearest is the same")
    mrr: Share | None = Field(None, description="mean of 1 / rank of the item's own vector")
    cosine: Share | None = Field(
        None, description="mean cosine to the item's own vector, about the anchors' mean"
    )
    jaccard_target: Share | None = None
    jaccard_own: Share | None = None

    def given(self) -> dict[str, float]:
        return self.model_dump(exclude_none=True)


#: nobody writes to them; a default would be copied for each request
NO_OPTIONS = Options()
NO_MINIMUM = MinQuality()


@lru_cache(maxsize=1024)
def _usual(
    source: str | None, target: str, anchor_set: str, method: str, prefer: Preference
) -> translators.Request:
    """A request without options: most are, and equal to one a moment ago."""
    return translators.Request(source, target, anchor_set, method, {}, prefer)


class PairRequest(Body):
    """Which two spaces of which anchor set, and how to fit between them."""

    source: Name | None = None
    target: Name
    anchor_set: Name
    method: Method = "auto"
    options: Options = Field(default_factory=lambda: NO_OPTIONS)
    prefer: Annotated[Preference, Field(description="auto: what to choose the method by")] = (
        "retrieval"
    )
    min_quality: MinQuality = Field(default_factory=lambda: NO_MINIMUM)

    def pair(self) -> translators.Request:
        if self.method != "auto" and "prefer" in self.model_fields_set:
            raise InvalidRequest(
                "prefer is what auto chooses by; a method is named", field="prefer"
            )
        if self.options is NO_OPTIONS and self.min_quality is NO_MINIMUM:
            return _usual(self.source, self.target, self.anchor_set, self.method, self.prefer)
        return translators.Request(
            self.source,
            self.target,
            self.anchor_set,
            self.method,
            self.options.given(),
            self.prefer,
            self.min_quality.given(),
        )


class TranslatorRequest(PairRequest):
    """Which two spaces of which anchor set, and how to fit between them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"source": "old", "target": "new", "anchor_set": "faq"}]}
    )

    source: Name


class TranslateRequest(PairRequest, InputsBody):
    """Exactly one of `vectors` and `inputs` of the source encoder, or `relative` vectors made with `relative_power`.

    Relative vectors need no `source`: they are decoded by what the target's anchors say alone.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"source": "old", "target": "new", "anchor_set": "faq", "vectors": [[0.5, 0.1]]}
            ]
        }
    )

    vectors: Vectors = None
    relative: Vectors = None
    relative_power: Annotated[Finite, Field(ge=0, le=1)] | None = None
    encoding: Encoding = "float"
    dtype: Dtype = "float32"
    precision: Annotated[
        ProductPrecision,
        Field(
            description="bfloat16: faster where processors multiply it; the answer says how far off it is"
        ),
    ] = "float32"

    confidence: Annotated[
        bool,
        Field(
            description="say of each row how near it lies to the target encoder's own vector, and whether it is strange"
        ),
    ] = False
    confidence_level: (
        Annotated[
            float,
            Field(
                ge=0.5, le=0.99, allow_inf_nan=False, description="of its intervals: default 0.9"
            ),
        ]
        | None
    ) = None

    def level(self, *, whole: bool) -> float | None:
        """Of the intervals that are asked for, if any; `whole`: whether the answer is a matrix with room beside it."""
        if not self.confidence:
            if self.confidence_level is not None:
                raise InvalidRequest(
                    "confidence_level belongs to confidence: true", field="confidence_level"
                )
            return None
        if self.relative is not None:
            raise InvalidRequest(
                "relative vectors have no source whose anchors they could be compared with",
                field="confidence",
            )
        if not whole:
            raise InvalidRequest(
                "confidence is told in JSON and Arrow, in one answer: not in npy, nor in streams",
                field="confidence",
            )
        return 0.9 if self.confidence_level is None else self.confidence_level

    def translation(self) -> plans.Translation:
        if self.relative_power is not None:
            raise NotExactlyOne(
                "relative_power belongs to relative vectors", field="relative_power"
            )
        if self.source is None:
            raise MissingField(
                "vectors and inputs need a source, the encoder they come from", field="source"
            )
        return plans.Translation(self.pair())

    def decoding(self) -> plans.Decoding:
        if self.precision != "float32":
            raise InvalidRequest("relative vectors are decoded in float32", field="precision")
        return plans.Decoding(self.pair(), self.relative_power or 0.0)


class Flag(BaseModel):
    """Something to know about one row of an answer: it equals the anchors' mean, or lies in directions that they do not span;
    or the encoder has read only the beginning of its input; or, where confidence is asked for, it is unlike the anchors.
    """

    row: int
    code: Literal["equals-anchor-mean", "outside-anchors", "input-truncated", "out-of-distribution"]


class PrecisionError(BaseModel):
    """Distances from float32's translations, as parts of those from the target's mean, over some of the rows."""

    mean: float
    largest: float
    rows: int


class PrecisionFound(BaseModel):
    """The precision asked for, and what it cost."""

    name: str
    error: PrecisionError


class TranslateAnswer(BaseModel):
    """`count` vectors of `dim` numbers in the target encoder's units; a flagged row is the target's mean."""

    vectors: Vectors
    count: int
    dim: int
    method: str
    options: dict[str, Any]
    translator: str | None = Field(
        description="null for relative vectors: their source is not known"
    )
    flags: list[Flag]
    precision: PrecisionFound | None = Field(None, description="absent at float32")
    confidence: Confidence | None = Field(None, description="absent unless asked for")


class Quality(BaseModel):
    """Numbers over n held-out anchors, vectors centred on the anchors' mean; recall and Jaccards at k neighbours."""

    n: int
    k: int
    cosine: float
    mrr: float
    recall: float
    recall_1: float | None = Field(
        None, description="null in reports that were made before it was measured"
    )
    jaccard_target: float
    jaccard_own: float


class WithIntervals(Quality):
    """The same, and for each measure the interval in which 95 of 100 such means over other items would lie."""

    intervals: dict[str, tuple[float, float]]


class Measured(WithIntervals):
    """The same, and the size of the index."""

    index: float = Field(
        description="how many items each was searched among: those held out with it"
    )


class HeldOut(BaseModel):
    """Every anchor translated by a fit that never saw it, beside source vectors used as they are, and the target's own."""

    folds: int
    translated: Measured
    do_nothing: Measured
    native: Measured


class Promised(BaseModel):
    """One measure's value, and its 95 % interval."""

    value: float
    low: float
    high: float


class Promise(BaseModel):
    """What a translator fitted to all `anchors` is expected to reach in an index of `index` items, at `neighbours` neighbours."""

    anchors: int
    index: int
    neighbours: int
    measures: dict[str, Promised]


class Against(BaseModel):
    """A measure of the true pairs, its mean over all other pairings, and how many standard deviations lie between."""

    found: float
    chance: float
    z: float


class Evidence(BaseModel):
    """Whether the translation is any better than of shuffled anchors; of `skill` 1 it would be perfect, of 0 none at all."""

    verdict: Literal["related", "useless"]
    level: float = Field(description="the chance that unrelated anchors pass for related ones")
    items: int
    cosine: Against
    mrr: Against
    skill: float


class More(BaseModel):
    """What so many more anchors like these would probably add to each measure."""

    anchors: int
    gain: dict[str, Promised]


class Learning(BaseModel):
    """Held-out measures of fits with fewer anchors, and what more of them would add."""

    anchors: list[float]
    index: int
    neighbours: int
    measures: dict[str, list[float]]
    more: list[More]


class Hurting(BaseModel):
    """An anchor without which the mean cosine of the others would be higher by `gain`; `own`: its own, held out."""

    row: int
    gain: float
    own: float


class Influence(BaseModel):
    """Anchors that do more harm than good, the first 20: look whether both encoders had the same item there."""

    hurting: list[Hurting]
    hurting_count: int


class Candidate(BaseModel):
    """A method that auto has looked at, and its means over held-out anchors; agreement: with the nearest of some clusters."""

    method: str
    options: dict[str, Any]
    recall: float
    mrr: float
    cosine: float
    agreement: float
    score: float = Field(description="what decides: for retrieval, recall and some MRR")
    error: float = Field(
        description="standard error of its score's difference from the usual method's"
    )


class Choice(BaseModel):
    """Why auto chose this translator."""

    prefer: Preference
    reason: str
    anchors: int
    folds: int
    found: dict[str, float] = Field(
        description="by measure, where no anchor has voted for what it is measured by; of an index of all anchors, as the "
        "candidates' numbers: to compare them, not with held_out"
    )
    candidates: list[Candidate] = Field(description="best first")


class SpaceInReport(BaseModel):
    """One of the two spaces."""

    encoder: str
    dim: int
    rank: int
    condition: float = Field(description="largest over smallest kept singular value")
    duplicates: int = Field(description="rows equal to an earlier row")


class Report(BaseModel):
    """What to expect of a translator."""

    anchors: int
    distinct: int | None = Field(
        description="how many are left when copies on either side are counted once"
    )
    evidence: Evidence | None = Field(description="null as held_out is")
    learning: Learning | None = Field(description="null below 25 distinct anchors")
    influence: Influence | None = Field(description="null as held_out is")
    promise: Promise | None = Field(
        description="what min_quality is compared with; null as held_out is"
    )
    held_out: HeldOut | None = Field(
        description="null below 10 distinct anchors, or where a fold leaves only one"
    )
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
    choices: dict[Preference, Choice] = Field(
        description="by what auto was asked to prefer, where it chose this one"
    )
    created_at: datetime


def describe(row: tables.TranslatorRow) -> Translator:
    return Translator(
        id=row.content,
        source=row.source.encoder.name,
        target=row.target.encoder.name,
        anchor_set=row.source.anchor_set.name,
        method=row.method,
        options=row.options,
        report=Report.model_validate(row.report),
        choices={
            prefer: Choice.model_validate(choice) for prefer, choice in (row.choices or {}).items()
        },
        created_at=row.created_at,
    )


@router.post(
    "/translate",
    responses={
        200: {"model": TranslateAnswer, **BULK},
        **documented(400, 404, 406, 409, 413, 415, 422),
    },
    response_model=None,
)
async def translate(
    call: Annotated[Call[TranslateRequest], vector_call(TranslateRequest, streams=True)],
) -> Response:
    """Translate vectors, inputs or relative vectors into the target encoder's space."""
    services, project, body = call.services, call.project, call.body
    if call.streamed:
        return await streams.respond(call.request, await _plan(body, services, project))
    given = [name for name in ("vectors", "inputs", "relative") if getattr(body, name) is not None]
    if len(given) != 1:
        raise NotExactlyOne(
            "send exactly one of vectors, inputs and relative",
            field=given[1] if given else "vectors",
        )
    writer = answers.choose(call, body.encoding, body.dtype)
    level = body.level(whole=writer.media != npy.MEDIA)
    wanted, vectors = (
        (body.translation(), body.vectors)
        if body.relative is None
        else (body.decoding(), body.relative)
    )
    with call.encoding():
        answer = await plans.serve(
            services, project, wanted, vectors, body.given_inputs(), writer.form, body.precision
        )
    made, by = answer.made, answer.served
    count, dim = made.vectors.shape
    BATCH.observe(count)
    rated = (
        None
        if level is None
        else await run_in_threadpool(
            confidence.confidence_of, services, answer, level, field=given[0]
        )
    )
    about: dict[str, Any] = {
        "count": count,
        "dim": dim,
        "method": by.method,
        "options": dict(by.options or {}),
        "translator": by.id,
        "flags": answers.flags(
            made.at_mean,
            made.outside,
            truncated=answer.truncated,
            strange=None if rated is None else rated.expected.strange,
        ),
    }
    if rated is not None:
        about["confidence"] = columns(rated)
    if body.precision != "float32" and by.translator is not None:
        about["precision"] = {
            "name": body.precision,
            "error": products.precision_error(by.translator, answer.given, made.vectors),
        }
    return await answers.write(call, writer, made.vectors, about)


async def _plan(body: TranslateRequest, services: Services, project: str) -> Plan:
    """What serves a stream of vectors, or of relative ones, which then is said by `relative=true`."""
    if (
        body.vectors is not None
        or body.inputs is not None
        or body.relative not in (None, BODY_ROWS)
    ):
        raise NotExactlyOne("the vectors of a stream are its body", field="vectors")
    answers.refuse_base64(body.encoding)
    body.level(whole=False)
    wanted = body.decoding() if body.relative else body.translation()
    served = await run_in_threadpool(plans.make, services, project, wanted)
    return Plan(services, served, body.dtype, body.precision, "translate")


@router.post(
    "/translators",
    status_code=201,
    responses={202: ASYNC, **documented(400, 404, 409, 413, 415, 422)},
)
def create_translator(
    project: Writes,
    body: Annotated[TranslatorRequest, json_body(TranslatorRequest)],
    response: Response,
    services: Svc,
    _: IdempotencyKey = None,
    prefer: Prefer = None,
) -> Translator | Job:
    """Fit a translator and measure it on held-out anchors, without translating anything.

    Large sets take a while: with `Prefer: respond-async` a worker does it, and its job's result names the translator.
    """
    if wants_job(prefer):
        job = idempotent(
            services,
            project,
            tables.JobRow,
            lambda: translators.request_translator(services, project, body.pair()),
        )
        return accepted(response, job)

    def make() -> tables.TranslatorRow:
        request = body.pair()
        source, target = translators.pair(services, project, request)
        fitted = translators.fit(services, project, source, target, request)
        row = translators.report(services, project, fitted.id, between=(source.id, target.id))
        contracts.require(row, request.min_quality)
        return row

    row = idempotent(services, project, tables.TranslatorRow, make)
    response.headers["Location"] = f"/translators/{row.content}"
    return describe(
        translators.report(services, project, row.content, between=(row.source_id, row.target_id))
    )


@router.get("/translators/{id}", responses=documented(404, 422))
def get_translator(
    id: Annotated[str, Path(pattern=r"^tr_[0-9a-f]{32}$")], services: Svc, project: Reads
) -> Translator:
    """A translator's quality report, by the id that /translate or /stitch answered: kept until nobody has used it for 90 days."""
    return describe(translators.report(services, project, id))
