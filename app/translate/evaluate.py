"""Evaluates a translation on a client's vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from app.anchors import spaces
from app.context import RequestContext, Services
from app.db import tables
from app.encoders import incoming
from app.errors import InvalidRequest, MissingField, blaming
from app.maths.quality import metrics
from app.maths.quality.metrics import CosineBlockFunction, bootstrap_interval
from app.maths.translators.translator import apply
from app.translate import fit as translators
from app.translate.maps import FitRequest

#: most multiplications of an evaluation without a job: about a second of one core
REQUEST_MULTIPLICATIONS = 2**33

#: the cost of finding neighbours, per cosine
MULTIPLICATIONS_PER_COSINE = 128

#: fewest items: one item has no neighbours
FEWEST_EVALUATED = 2

#: the vectors that are measured as queries
QUERY_KINDS = ("translated", "do_nothing")


@dataclass(frozen=True, eq=False)
class EvaluationTask:
    """A checked evaluation of a translation.

    items  vectors (n, d_x) by the source, native (n, d_y) by the target of the same items, and,
           unless `native` is the index to search, corpus (m, d_y) by the target
    k      neighbours to compare
    """

    request: FitRequest
    items: Mapping[str, Tensor]
    k: int
    source: tables.SpaceRow
    target: tables.SpaceRow

    @property
    def index(self) -> int:
        """The number of items that are searched."""
        return len(self.items.get("corpus", self.items["vectors"]))

    @property
    def steps(self) -> int:
        """The number of cosines to compute."""
        return (1 + len(QUERY_KINDS)) * len(self.items["vectors"]) * self.index

    @property
    def is_small(self) -> bool:
        """Whether the evaluation runs without a job."""
        dim = max(self.source.encoder.dim, self.target.encoder.dim)
        return (
            self.steps * (dim + MULTIPLICATIONS_PER_COSINE)
            + 3 * self.source.anchor_set.size * dim * dim
            <= REQUEST_MULTIPLICATIONS
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What a job of the evaluation needs beside its request and tensors."""
        return {"k": self.k}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What such a job reads."""
        return dict(self.items)

    def measure(
        self,
        services: Services,
        context: RequestContext,
        on_progress: Callable[[int, int], object] = lambda *_: None,
    ) -> dict[str, Any]:
        """Return the evaluation as JSON.

        on_progress  called with the steps that are done, and all

        Runs on the CPU, so that requests and jobs return equal numbers. Raises the errors of
        `translators.fit`, OutOfRange for vectors that cannot be translated, and Overloaded.
        """
        y = spaces.fitted_space(services, self.target)
        request, items = self.request, self.items
        about = {
            "source": request.source,
            "target": request.target,
            "anchor_set": request.anchor_set,
        }
        cosines = _report_cosines(on_progress, self.steps)
        fitted = translators.fit(services, context, self.source, self.target, request)
        with services.take(services.turns.evaluations, context.project):
            with blaming("vectors"):
                translated = apply(fitted.translator, items["vectors"]).vectors
            measures = _measure(items, self.k, translated, y.mean, cosines)
            return {
                **about,
                "translator": fitted.id,
                "method": fitted.method,
                "options": dict(fitted.options),
                "n": len(items["vectors"]),
                "index": self.index,
                "k": self.k,
                **measures,
            }


def check_evaluation(
    services: Services,
    project: str,
    request: FitRequest,
    items: Mapping[str, Tensor],
    k: int | None,
) -> EvaluationTask:
    """Check the request before anything is fitted.

    items  as of the task
    k      neighbours to compare; None: 10, or fewer if there are fewer

    Raises the not-found errors, AnchorsNotEmbedded, the option and vector errors, MissingField, and
    InvalidRequest.
    """
    source, target = translators.find_pair(services, project, request)
    for field in ("vectors", "native"):
        if field not in items:
            raise MissingField(
                "`vectors` and `native` belong together: row i of both is the same item. Send "
                "both, or send `judgements`.",
                field=field,
            )
    for name in ("min_quality", "index"):
        if getattr(request, name):
            raise InvalidRequest(f"`{name}` does not apply to /evaluate. Remove it.", field=name)
    translators.check_options(request, anchors=source.anchor_set.size)
    dims = {name: (source if name == "vectors" else target).encoder.dim for name in items}
    items = {
        field: incoming.checked_vectors(rows, field=field, limits=services.limits, dim=dims[field])
        for field, rows in items.items()
    }
    return EvaluationTask(request, items, _neighbours(items, k), source, target)


def _neighbours(items: Mapping[str, Tensor], k: int | None) -> int:
    """Return k, by default 10 or the most possible. Raises InvalidRequest for counts that do not
    match.
    """
    n, natives, corpus = len(items["vectors"]), len(items["native"]), items.get("corpus")
    if n != natives:
        raise InvalidRequest(
            f"There are {n} `vectors` and {natives} `native`. Send as many of both: row "
            "i is the same item.",
            field="native",
        )
    if n < FEWEST_EVALUATED:
        raise InvalidRequest(
            f"Expected at least {FEWEST_EVALUATED} items: a single one has no neighbours.",
            field="vectors",
        )
    others = n - 1 if corpus is None else len(corpus)
    if k is not None and k > others:
        raise InvalidRequest(
            f"`k` is {k}; there are only {others} other rows in the index.", field="k"
        )
    return min(metrics.DEFAULT_NEIGHBOURS, others) if k is None else k


def _measure(
    items: Mapping[str, Tensor],
    k: int,
    translated: Tensor,
    mean: Float64[Tensor, " dy"],
    cosines: CosineBlockFunction,
) -> dict[str, dict[str, Any]]:
    """Measure each kind of queries, centred on the target's anchors."""
    corpus, native = items.get("corpus"), items["native"].double() - mean
    queries = {
        "translated": translated.double() - mean,
        "do_nothing": metrics.do_nothing(items["vectors"].double(), len(mean)) - mean,
    }
    measures = metrics.evaluate(
        queries,
        native,
        k,
        corpus=None if corpus is None else corpus.double() - mean,
        cosines=cosines,
    )
    return {kind: _describe(measures[kind]) for kind in QUERY_KINDS}


def _describe(measures: Mapping[str, Tensor]) -> dict[str, Any]:
    """The means of the items' measures, and their 95 % bootstrap intervals."""
    table = torch.stack(list(measures.values()), dim=1)
    ends = zip(*(end.tolist() for end in bootstrap_interval(table)), strict=True)
    return {
        **{name: float(values.mean()) for name, values in measures.items()},
        "intervals": dict(zip(measures, map(list, ends), strict=True)),
    }


def _report_cosines(on_progress: Callable[[int, int], object], total: int) -> CosineBlockFunction:
    """Blocks of cosines. `on_progress` is called before each, and may raise to end the
    evaluation.
    """
    done = 0

    def blocks(queries: Tensor, index: Tensor) -> metrics.ScoreBlocks:
        nonlocal done
        for start, block in metrics.cosine_blocks(queries, index):
            on_progress(done, total)
            done += block.numel()
            yield start, block

    return blocks
