"""Evaluations: how good a translation is on vectors that a client holds, and how alike two encoders are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from app.errors import AnchorageError, InvalidRequest, MissingField
from app.maths.quality import evaluation as maths
from app.maths.quality import metrics
from app.maths.quality.hubness import CosineBlockFunction
from app.maths.quality.intervals import bootstrap_interval
from app.maths.quality.similarity import Similarity, relative_similarity
from app.maths.translators.decoder import TranslatedRows
from app.maths.translators.translator import Translator, apply
from app.services import incoming
from app.services.anchors import spaces
from app.services.context import Services
from app.services.jobs.queue import Done, Progress, submit
from app.services.translators import translators
from app.storage import tables
from app.types import JobKind

#: multiplications of an evaluation that a request waits for: about a second of one core
INLINE = 2**33

#: finding the nearest of a cosine's neighbours takes as long as so many multiplications
PER_COSINE = 128

#: fewer items than this have no neighbours
FEWEST = 2

#: the kinds of queries that are measured
KINDS = ("translated", "do_nothing", "native")

#: what is said of a translation, where there is none
NOTHING_TRANSLATED: Mapping[str, None] = dict.fromkeys(
    (
        "translator",
        "method",
        "options",
        "n",
        "index",
        "k",
        "csls_neighbours",
        "at_mean",
        "outside",
        *KINDS,
    )
)


@dataclass(frozen=True, eq=False)
class Items:
    """What a client holds.

    vectors  (n, d_x) by the source, and native (n, d_y) by the target of the same items
    corpus   (m, d_y) by the target, or None
    """

    vectors: Tensor
    native: Tensor
    corpus: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        given = {"vectors": self.vectors, "native": self.native, "corpus": self.corpus}
        return {name: tensor for name, tensor in given.items() if tensor is not None}


@dataclass(frozen=True)
class Settings:
    """k neighbours, and csls_neighbours of the correction that `csls` asks for; None: 10, or as many as there are."""

    k: int | None = None
    csls: bool = False
    csls_neighbours: int | None = None


@dataclass(frozen=True, eq=False)
class Asked:
    """A checked request for an evaluation, of the anchors alone where there are no items; of `settings` nothing is None then."""

    request: translators.Request
    items: Items | None
    settings: Settings
    source: tables.SpaceRow
    target: tables.SpaceRow

    @property
    def cosines(self) -> int:
        """How many are computed."""
        n = self.source.anchor_set.size if self.items is None else len(self.items.vectors)
        within = 2 * n * n
        if self.items is None:
            return within
        corpus = None if self.items.corpus is None else len(self.items.corpus)
        return within + maths.cosine_count(len(KINDS), n, corpus, corrected=self.settings.csls)

    @property
    def is_small(self) -> bool:
        """Whether a request may wait for it."""
        dim = max(self.source.encoder.dim, self.target.encoder.dim)
        return (
            self.cosines * (dim + PER_COSINE) + 3 * self.source.anchor_set.size * dim * dim
            <= INLINE
        )


def ask(
    services: Services,
    project: str,
    request: translators.Request,
    *,
    vectors: Tensor | None,
    native: Tensor | None,
    corpus: Tensor | None,
    settings: Settings,
) -> Asked:
    """Check everything that can be known before anything is fitted.

    Raises the not-found errors, AnchorsNotEmbedded, the option and vector errors, MissingField, and InvalidRequest.
    """
    source, target = translators.pair(services, project, request)
    if vectors is None and native is None:
        _refuse_without_items(request, corpus, settings)
        return Asked(request, None, settings, source, target)
    if vectors is None or native is None:
        field = "vectors" if vectors is None else "native"
        raise MissingField(
            "vectors and native come together: row i of both is one item", field=field
        )
    if request.min_quality:
        raise InvalidRequest(
            "an evaluation measures what there is, and serves nothing", field="min_quality"
        )
    translators.check(request, anchors=source.anchor_set.size)
    limits = services.limits
    items = Items(
        incoming.checked_vectors(vectors, field="vectors", limits=limits, dim=source.encoder.dim),
        incoming.checked_vectors(native, field="native", limits=limits, dim=target.encoder.dim),
        None
        if corpus is None
        else incoming.checked_vectors(
            corpus, field="corpus", limits=limits, dim=target.encoder.dim
        ),
    )
    return Asked(request, items, _settled(items, settings), source, target)


def evaluate(
    services: Services,
    project: str,
    asked: Asked,
    tell: Callable[[int, int], object] = lambda *_: None,
) -> dict[str, Any]:
    """The evaluation itself, as JSON has it; tells how many of its cosines are done.

    Raises as `translation.fit`, OutOfRange for vectors that cannot be translated, and Overloaded.
    On the CPU wherever it runs, so that a request and a job say the same.
    """
    x, y = spaces.fitted_space(services, asked.source), spaces.fitted_space(services, asked.target)
    request, items = asked.request, asked.items
    about = {"source": request.source, "target": request.target, "anchor_set": request.anchor_set}
    cosines = _watched(tell, asked.cosines)
    if items is None:
        first, second = (
            spaces.raw_anchors(services, asked.source),
            spaces.raw_anchors(services, asked.target),
        )
        with services.evaluating():
            alike = relative_similarity(x, y, first, second, of_anchors=True, cosines=cosines)
        return {**about, **NOTHING_TRANSLATED, "similarity": _similarity(alike)}
    fitted = translators.fit(services, project, asked.source, asked.target, request)
    with services.evaluating():
        made = _translated(fitted.translator, items.vectors)
        settings, n = asked.settings, len(items.vectors)
        assert settings.k is not None
        alike = relative_similarity(
            x, y, items.vectors, items.native, min(settings.k, n - 1), cosines=cosines
        )
        measured = _measured(asked, items, made, y.mean, cosines)
        return {
            **about,
            "translator": fitted.id,
            "method": fitted.method,
            "options": dict(fitted.options),
            "n": n,
            "index": n if items.corpus is None else len(items.corpus),
            "k": settings.k,
            "csls_neighbours": settings.csls_neighbours,
            "at_mean": int(made.at_mean.sum()),
            "outside": int(made.outside.sum()),
            **measured,
            "similarity": _similarity(alike),
        }


def request_evaluation(services: Services, project: str, asked: Asked) -> tables.JobRow:
    """Store the items, and queue the job. Raises StorageUnavailable, TooManyJobs, QueueFull."""
    arguments = {"request": asdict(asked.request), "settings": asdict(asked.settings)}
    if asked.items is not None:
        arguments["blobs"] = {"items": services.blobs.put(asked.items.tensors)}
    return submit(services, project, JobKind.evaluate, arguments)


def run_evaluation(services: Services, job: tables.JobRow, progress: Progress) -> Done:
    """The job itself; its result is what a request would have been answered."""
    arguments = job.arguments
    given = services.blobs.get(arguments["blobs"]["items"]) if "blobs" in arguments else {}
    asked = ask(
        services,
        job.project,
        translators.Request(**arguments["request"]),
        vectors=given.get("vectors"),
        native=given.get("native"),
        corpus=given.get("corpus"),
        settings=Settings(**arguments["settings"]),
    )
    result = evaluate(services, job.project, asked, progress)
    progress(asked.cosines, asked.cosines)
    return Done(result)


def _refuse_without_items(
    request: translators.Request, corpus: Tensor | None, settings: Settings
) -> None:
    """Raises InvalidRequest for what would be looked at by nobody."""
    unused = {
        "corpus": corpus is not None,
        "method": request.method != "auto",
        "options": bool(request.options),
        "prefer": request.prefer != "retrieval",
        "min_quality": bool(request.min_quality),
        "k": settings.k is not None,
        "csls": settings.csls,
        "csls_neighbours": settings.csls_neighbours is not None,
    }
    for field, given in unused.items():
        if given:
            raise InvalidRequest(
                f"without vectors and native nothing is translated: {field} has no place",
                field=field,
            )


def _settled(items: Items, settings: Settings) -> Settings:
    """The settings with the numbers that they leave open. Raises InvalidRequest for counts that do not fit together."""
    n = len(items.vectors)
    if n != len(items.native):
        raise InvalidRequest(
            f"{n} vectors, {len(items.native)} native ones: row i of both is one item",
            field="native",
        )
    if n < FEWEST:
        raise InvalidRequest(
            f"expected at least {FEWEST} items: one has no neighbours", field="vectors"
        )
    others = n - 1 if items.corpus is None else len(items.corpus)
    rows = n if items.corpus is None else len(items.corpus)
    k = _at_most(settings.k, others, "k", "rows of the index beside the item itself")
    if settings.csls:
        most = min(n, rows)
        return Settings(
            k,
            True,
            _at_most(
                settings.csls_neighbours, most, "csls_neighbours", "items, or rows of the index"
            ),
        )
    if settings.csls_neighbours is not None:
        raise InvalidRequest("csls_neighbours are of csls, which is false", field="csls_neighbours")
    return Settings(k)


def _at_most(given: int | None, most: int, field: str, of: str) -> int:
    """As many as asked for, or 10, or all. Raises InvalidRequest."""
    if given is not None and given > most:
        raise InvalidRequest(f"{field} is {given}, and there are {most} {of}", field=field)
    return min(metrics.DEFAULT_NEIGHBOURS, most) if given is None else given


def _translated(translator: Translator, vectors: Tensor) -> TranslatedRows:
    """Raises OutOfRange, naming rows of `vectors`."""
    try:
        return apply(translator, vectors)
    except AnchorageError as error:
        raise error.at("vectors") from None


def _measured(
    asked: Asked,
    items: Items,
    made: TranslatedRows,
    mean: Float64[Tensor, " dy"],
    cosines: CosineBlockFunction,
) -> dict[str, dict[str, Any]]:
    """Each kind of queries, centred on the target's anchors."""
    native = items.native.double() - mean
    queries = {
        "translated": made.vectors.double() - mean,
        "do_nothing": metrics.do_nothing(items.vectors.double(), len(mean)) - mean,
        "native": native,
    }
    settings = asked.settings
    assert settings.k is not None
    found = maths.evaluate(
        queries,
        native,
        settings.k,
        corpus=None if items.corpus is None else items.corpus.double() - mean,
        csls_neighbours=settings.csls_neighbours,
        cosines=cosines,
    )
    return {kind: _numbers(found[kind]) for kind in KINDS}


def _numbers(measured: maths.QueryEvaluation) -> dict[str, Any]:
    """Means, their intervals, and the same by CSLS."""
    items, corrected = measured.items, measured.csls
    retrieval = ("recall", "recall_1", "jaccard_target")
    plain = {"cosine": items.cosine, "mrr": items.reciprocal_rank, "jaccard_own": items.jaccard_own}
    plain |= {name: getattr(items, name) for name in retrieval}
    made = {
        **asdict(metrics.mean_quality(items)),
        "intervals": _intervals(plain),
        "skewness": measured.skewness,
        "csls": None,
    }
    if corrected is not None:
        values = {
            "mrr": corrected.reciprocal_rank,
            **{name: getattr(corrected, name) for name in retrieval},
        }
        means = {name: float(each.mean()) for name, each in values.items()}
        made["csls"] = {**means, "intervals": _intervals(values), "skewness": corrected.skewness}
    return made


def _similarity(found: Similarity) -> dict[str, Any]:
    values = {"cosine": found.cosine, "jaccard": found.jaccard}
    means = {name: float(each.mean()) for name, each in values.items()}
    return {
        "n": len(found.cosine),
        "k": found.k,
        **means,
        "cka": found.cka,
        "intervals": _intervals(values),
    }


def _intervals(values: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """The 95 % bootstrap interval of each mean over the items."""
    low, high = bootstrap_interval(torch.stack(list(values.values()), dim=1))
    return {name: [float(low[place]), float(high[place])] for place, name in enumerate(values)}


def _watched(tell: Callable[[int, int], object], total: int) -> CosineBlockFunction:
    """Blocks of cosines, each told of before it is made use of; what `tell` raises ends it."""
    done = 0

    def blocks(queries: Tensor, index: Tensor) -> metrics.ScoreBlocks:
        nonlocal done
        for start, block in metrics.cosine_blocks(queries, index):
            tell(done, total)
            done += block.numel()
            yield start, block

    return blocks
