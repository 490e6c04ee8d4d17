"""`anchorage evaluate`: what translated vectors find of what a new index would find."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.files import Grades, read_items, read_judgements
from app.cli.output import AsJson, print_json, warn
from app.cli.service import Service, at, uses_service
from app.cli.stores import Mode, Native, require_mode

if TYPE_CHECKING:
    from torch import Tensor

#: texts that one request embeds, and queries of one search of a store: both within its deadlines
TEXTS_A_REQUEST, QUERIES_A_REQUEST = 64, 10

#: how long a search waits for native vectors: the result must not depend on the machine's load
DEADLINE_MS = 30_000

#: results of a query that are compared
K = 10

#: with fewer queries, the interval may be too narrow
FEWEST_QUERIES = 20


@uses_service
def evaluate(
    service: Service,
    source: Annotated[str, typer.Option("--source", help="The old encoder.")],
    target: Annotated[
        str, typer.Option("--target", help="The new encoder, which the service runs.")
    ],
    anchor_set: Annotated[str, typer.Option(help="The anchor set that both encoders embedded.")],
    queries: Annotated[Path, typer.Option(help="The queries: queries.jsonl of BEIR.")],
    documents: Annotated[Path, typer.Option(help="All documents: corpus.jsonl of BEIR.")],
    judgements: Annotated[
        Path | None,
        typer.Option(
            help="Grades: qrels of TREC or BEIR, or JSONL; default: the ten documents that the new "
            "encoder finds are the relevant ones.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="A connected store that holds the documents by the old encoder; default: the "
            "service embeds them with it.",
            show_default=False,
        ),
    ] = None,
    mode: Mode = None,
    native: Native = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Exit with 1 if the lower end of the share's 95 % interval is below this.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a search by translated vectors finds of what a new index would find.

    The share is its nDCG@10 divided by that of the new encoder's own vectors. Nothing is written to
    a store. In a GitHub workflow, the report is also in the summary of the job.
    """
    if store is None and (mode or native is not None):
        raise typer.BadParameter("--mode and --native need --store.")
    require_mode(mode)
    asked, corpus = (_cut(read_items(each), each) for each in (queries, documents))
    grades = None if judgements is None else read_judgements(judgements)
    if grades is not None:
        asked = _judged(asked, corpus, grades)
    if store is None and service.get(at("encoders", source))["kind"] == "external":
        raise typer.BadParameter(
            f"The service does not run {source}: name a --store with its rows."
        )
    pair = {"source": source, "target": target, "anchor_set": anchor_set}
    vectors = embed(service, target, [*asked.values()], "query")
    texts = [*corpus.values()]
    if store is None:
        model = f"{source}->{target}@{anchor_set}"
        service.post("/translate", **pair, inputs=texts[:1])  # waits for a fit; /v1 does not
        found, option = nearest(vectors, embed(service, model, texts, "document")), "translate"
    else:
        body = {"target": target, "anchor_set": anchor_set, "mode": mode, "native": native}
        found, option = search(service, store, [*asked.values()], [*corpus], body)
    best = nearest(vectors, embed(service, target, texts, "document"))
    report = {**pair, "option": option, **measure(found, best, [*asked], [*corpus], grades)}
    passed = None if fail_under is None else report["share"]["low"] >= fail_under
    report |= {"fail_under": fail_under, "passed": passed}
    show(report, as_json=as_json)
    if passed is False:
        raise typer.Exit(1)


def embed(service: Service, model: str, texts: Sequence[str], role: str) -> Tensor:
    """Return the vectors (n, d) of texts by a model of `/v1`, which may be a translation."""
    import numpy as np
    import torch

    typer.echo(f"Embedding {len(texts):,} texts by {model}.", err=True)
    vectors = []
    for start in range(0, len(texts), TEXTS_A_REQUEST):
        part = texts[start : start + TEXTS_A_REQUEST]
        body = {"model": model, "input": part, "input_type": role, "encoding_format": "base64"}
        answer = service.post("/v1/embeddings", **body)
        vectors += [base64.b64decode(each["embedding"]) for each in answer["data"]]
    return torch.from_numpy(np.stack([np.frombuffer(each, "<f4") for each in vectors]))


def nearest(queries: Tensor, documents: Tensor) -> Tensor:
    """Return the rows (q, K) of the documents (m, d) with the largest cosines, best first."""
    from torch.nn.functional import normalize

    from app.maths.bootstrap.neighbours import nearest_rows

    count = min(K, len(documents))
    return nearest_rows(normalize(queries, dim=1), normalize(documents, dim=1), count)[1]


def search(
    service: Service,
    store: str,
    texts: Sequence[str],
    documents: Sequence[str],
    body: Mapping[str, Any],
) -> tuple[Tensor, str]:
    """Return the rows (q, K) of documents that a store's searches find, -1 for none, and the mode.

    Raises typer.BadParameter for a store that does not hold these documents.
    """
    import torch

    rows = {name: row for row, name in enumerate(documents)}
    if (count := service.get(at("stores", store))["rows"]) != len(rows):
        raise typer.BadParameter(
            f"The store {store} has {count:,} rows, and --documents {len(rows):,}. Both must hold "
            "the same documents, or one search can find what the other cannot."
        )
    found, option = [], ""
    warnings: dict[str, str] = {}
    for start in range(0, len(texts), QUERIES_A_REQUEST):
        part = texts[start : start + QUERIES_A_REQUEST]
        more = {"inputs": part, "k": K, "native_deadline_ms": DEADLINE_MS}
        answer = service.post(at("stores", store, "search"), **body, **more)
        for each in answer["results"]:
            ids = [str(id_) for id_ in each["ids"]]
            if unknown := [id_ for id_ in ids if id_ not in rows]:
                raise typer.BadParameter(
                    f"The store {store} has the id {unknown[0]}, and --documents does not."
                )
            found.append([rows[id_] for id_ in ids] + [-1] * (K - len(ids)))
        warnings |= {each["code"]: each["detail"] for each in answer["warnings"]}
        option = f"native-{answer['mode']}" if answer["native"] else answer["mode"]
    for code, detail in warnings.items():
        warn(f"WARNING ({code}): {detail}")
    return torch.tensor(found), option


def measure(
    found: Tensor,
    best: Tensor,
    queries: Sequence[str],
    documents: Sequence[str],
    grades: Grades | None,
) -> dict[str, Any]:
    """Return the mean nDCG@10 of both searches, and the share of the first in the second.

    found, best  (q, K) rows of documents by either search
    grades       None: what `best` has is relevant

    The interval is that of mean(a - share b) / mean(b), which is 0, around the share; a and b are
    the values of each query. Raises typer.BadParameter if `best` finds nothing relevant.
    """
    import torch

    from app.maths.quality.metrics import bootstrap_interval
    from app.maths.relevance.ranking_metrics import collect, measure_ranking

    if grades is None:
        asked = torch.arange(len(best)).repeat_interleave(best.shape[1])
        named, gains = best.flatten(), torch.ones(best.numel(), dtype=torch.float64)
    else:
        query_rows, rows = (
            {name: row for row, name in enumerate(each)} for each in (queries, documents)
        )
        kept = [
            (query_rows[q], rows[d], grade) for (q, d), grade in grades.items() if q in query_rows
        ]
        asked, named, gains = (torch.tensor(each) for each in zip(*kept, strict=True))
    judged = collect(asked, named, gains.double(), size=len(documents))
    values, ceiling = (measure_ranking(each, judged)[:, 0] for each in (found, best))
    if not ceiling.any():
        raise typer.BadParameter("The new encoder finds no relevant document for any query.")
    share = values.mean() / ceiling.mean()
    low, high = bootstrap_interval((values - share * ceiling) / ceiling.mean())
    ends = {"value": share, "low": share + low, "high": share + high}
    return {
        "judged": grades is not None,
        "queries": len(judged),
        "documents": len(documents),
        "ndcg_10": {"found": float(values.mean()), "re-embed": float(ceiling.mean())},
        "share": {name: float(each) for name, each in ends.items()},
    }


def show(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the report, and append it to the summary of a GitHub workflow."""
    share, ndcg = report["share"], report["ndcg_10"]
    verdict = {None: "measured", True: "passed", False: "failed"}[report["passed"]]
    judged = "judged queries" if report["judged"] else "queries without judgements"
    least = "" if report["passed"] is None else f", at least {report['fail_under']:.3f} needed"
    text = (
        f"### {report['source']} -> {report['target']}@{report['anchor_set']}: {verdict}\n\n"
        f"{report['queries']:,} {judged}, {report['documents']:,} documents.\n\n"
        "| search | nDCG@10 |\n| --- | --- |\n"
        f"| `{report['option']}` | {ndcg['found']:.3f} |\n"
        f"| `re-embed` | {ndcg['re-embed']:.3f} |\n"
        f"| share | {share['value']:.3f} ({share['low']:.3f} to {share['high']:.3f}{least}) |\n"
    )
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    print_json(report) if as_json else typer.echo(text, nl=False)
    if report["queries"] < FEWEST_QUERIES:
        warn(f"WARNING: {report['queries']} queries are few; the interval may be too narrow.")


def _cut(items: Mapping[str, str], file: Path) -> dict[str, str]:
    """Return texts as long as the service reads those of stores."""
    from app.services.context import Limits

    most = Limits().input_characters
    if long := sum(len(text) > most for text in items.values()):
        warn(f"WARNING: {long:,} texts of {file} are cut to {most:,} characters, as in searches.")
    return {name: text[:most] for name, text in items.items()}


def _judged(
    queries: Mapping[str, str], documents: Mapping[str, str], grades: Grades
) -> dict[str, str]:
    """Return the queries with a relevant document. Raises typer.BadParameter for unknown names."""
    for place, known, option in ((0, queries, "--queries"), (1, documents, "--documents")):
        if lacking := sorted({key[place] for key in grades} - known.keys()):
            raise typer.BadParameter(
                f"--judgements names {len(lacking)} ids that {option} lacks: "
                f"{', '.join(lacking[:3])}. Correct one of both files."
            )
    relevant = {query for (query, _), grade in grades.items() if grade > 0}
    if not relevant:
        raise typer.BadParameter("--judgements has no grade above 0.")
    return {query: text for query, text in queries.items() if query in relevant}
