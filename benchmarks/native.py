"""What does it bring that the new encoder reads the candidates of a query?

    python -m benchmarks.native [--draws 5]

Writes benchmarks/results/native.json.

nDCG@10 by human judgements on Cranfield, over HTTP: POST /stores/{name}/search on a store that
holds vectors and texts, for each ordered pair of three unrelated encoders. `keep` and `re-embed`
are exact searches by the old and the new encoder alone. The encoders answer behind an endpoint with
the vectors that they made of these texts (benchmarks/relevance/collection.py), so that the
benchmark measures the service and not the encoders. Anchors are documents drawn at random,
translators graded with their defaults, candidates 200.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import lancedb
import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console
from rich.progress import track

from benchmarks.common import RESULTS, Missing, Table, parser, show, write
from benchmarks.prepared import endpoint
from benchmarks.relevance.cells import anchor_rows
from benchmarks.relevance.client import mean_ndcg, packed
from benchmarks.relevance.collection import CRANFIELD, JudgedCollection, cranfield
from benchmarks.service import Matrix
from scripts.servers import serve

COUNTS = (0, 10, 20, 50, 100)
ANCHORS = (30, 100, 300, 1_000)
CANDIDATES = 200
QUERIES_AT_ONCE = 15

#: a gap below this is no gain to recover
LEAST_GAP = 0.02


def prepared(
    vectors: Mapping[str, Mapping[str, Matrix]], model: str, texts: Sequence[str]
) -> Matrix:
    """The vectors that an encoder made of these texts."""
    known = vectors[model]
    # The service asks for the dimension with texts of its own.
    return np.stack([known.get(text, next(iter(known.values()))) for text in texts])


class Service:
    """Calls of the service. Each must succeed."""

    def __init__(self, port: int) -> None:
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)

    def post(self, path: str, **body: Any) -> Any:
        """The answer. Raises RuntimeError for an error."""
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"Content-Type": "application/json"}
        for wait_s in (5, 10, 20, None):
            answer = self.http.post(path, content=content, headers=headers)
            # A busy machine may take longer than the service allows a store.
            if answer.status_code != 503 or wait_s is None:
                break
            time.sleep(wait_s)
        if answer.status_code >= 300:
            raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text[:1000]}")
        return answer.json()


@contextmanager
def served(
    addresses: Mapping[str, str], vectors: Mapping[str, Mapping[str, Matrix]]
) -> Iterator[Service]:
    """The service with these addresses of stores, and an encoder for each entry of `vectors`."""
    with endpoint(0, partial(prepared, vectors)) as url:
        settings = {
            "stores": json.dumps(
                {name: {"url": url, "remote_texts": True} for name, url in addresses.items()}
            ),
            "remote_urls": url,
            "native_texts_a_minute": 10**9,
        }
        with serve(**settings) as server:
            service = Service(server.port)
            for encoder in vectors:
                service.post(
                    "/encoders", name=encoder, kind="openai", model=encoder, options={"url": url}
                )
            yield service


def fill_lance(
    folder: Path, name: str, vectors: Matrix, texts: Sequence[str], order: Sequence[int] = ()
) -> dict[str, Any]:
    """Create a table with the rows in this `order`, or as they are."""
    ids = list(order or range(len(texts)))
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors[ids].reshape(-1)), vectors.shape[1])
    table = pa.table({"id": ids, "text": [texts[row] for row in ids], "vector": rows})
    lancedb.connect(str(folder)).create_table(name, table)
    return {"kind": "lancedb", "collection": name, "vector_field": "vector", "text_field": "text"}


def search(service: Service, data: JudgedCollection, store: str, **body: Any) -> dict[str, Any]:
    """nDCG@10 of all queries, and the texts that they had embedded."""
    rows: list[list[int]] = []
    counts = {"embedded": 0, "truncated": 0, "cached": 0, "missing": 0}
    total = len(next(iter(data.queries.values())))
    for start in range(0, total, QUERIES_AT_ONCE):
        part = {
            name: value[start : start + QUERIES_AT_ONCE] if isinstance(value, np.ndarray) else value
            for name, value in body.items()
        }
        found = service.post(
            f"/stores/{store}/search", k=10, exact=True, candidates=CANDIDATES, **part
        )
        rows += [[int(each) for each in one["ids"]] for one in found["results"]]
        for name, number in (found["native"] or {}).items():
            counts[name] += number
        for warning in found["warnings"]:
            if warning["code"].startswith("native"):
                raise RuntimeError(str(warning))
    return {"ndcg": mean_ndcg(data, rows), **counts}


def exact(data: JudgedCollection, encoder: str) -> float:
    unit = [
        each / np.linalg.norm(each, axis=1, keepdims=True)
        for each in (data.queries[encoder], data.documents[encoder])
    ]
    return mean_ndcg(data, np.argsort(-(unit[0] @ unit[1].T), axis=1)[:, :10].tolist())


def measure(service: Service, data: JudgedCollection, draws: int) -> list[dict[str, Any]]:
    """Each pair, old encoder alive or gone, number of anchors, draw and number of texts."""
    cells: list[dict[str, Any]] = []
    baselines = {encoder: exact(data, encoder) for encoder in data.documents}
    for source, target in itertools.permutations(data.documents, 2):
        known = {
            "source": source,
            "target": target,
            "keep": baselines[source],
            "re-embed": baselines[target],
        }
        queries = {"target": target, "queries": data.queries[target]}
        alive = {**queries, "old_queries": data.queries[source], "mode": "fuse"}
        for count in COUNTS[1:]:
            found = search(service, data, source, native=count, **alive)
            cell = {"old": "runs", "anchors": 0, "draw": 0, "native": count}
            cells.append({**known, **cell, **found})
        for size, draw in track(
            list(itertools.product(ANCHORS, range(draws))), f"{source} -> {target}"
        ):
            more = {"anchor_set": f"set-{size}-{draw}", "method": "graded"}
            for count in COUNTS:
                for old, body in (("is gone", {**queries, "mode": "cascade"}), ("runs", alive)):
                    if old == "runs" and size not in (30, 300):
                        continue
                    found = search(service, data, source, native=count, **body, **more)
                    cell = {"old": old, "anchors": size, "draw": draw, "native": count}
                    cells.append({**known, **cell, **found})
    return cells


def mean_of(cells: Sequence[Mapping[str, Any]], what: str = "ndcg") -> float:
    return float(np.mean([each[what] for each in cells])) if cells else float("nan")


def tables_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """Means over the draws, by pair; and the share of the gap."""
    pairs = list(dict.fromkeys((each["source"], each["target"]) for each in cells))
    sizes = sorted({each["anchors"] for each in cells if each["old"] == "runs"})
    columns = ["old -> new", "keep", "re-embed", "anchors", *(f"n {each}" for each in COUNTS)]
    rows = []
    for (source, target), size in itertools.product(pairs, sizes):
        same = [
            each
            for each in cells
            if (each["source"], each["target"], each["old"], each["anchors"])
            == (source, target, "runs", size)
        ]
        values = [mean_of([each for each in same if each["native"] == n]) for n in COUNTS]
        rows.append(
            [
                f"{source} -> {target}",
                f"{same[0]['keep']:.3f}",
                f"{same[0]['re-embed']:.3f}",
                f"{size:,}",
                *("" if np.isnan(value) else f"{value:.3f}" for value in values),
            ]
        )
    return {"runs": [columns, *rows], "gap": gap_table(cells, pairs)}


def gap_table(mine: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> Table:
    """(nDCG - keep) / (re-embed - keep) where re-embed gains at least LEAST_GAP, old one gone."""
    rows = []
    sizes = sorted({each["anchors"] for each in mine if each["old"] == "is gone"})
    for size, count in itertools.product(sizes, COUNTS):
        shares = [
            (mean_of(same) - same[0]["keep"]) / (same[0]["re-embed"] - same[0]["keep"])
            for source, target in pairs
            if (
                same := [
                    each
                    for each in mine
                    if (
                        each["source"],
                        each["target"],
                        each["old"],
                        each["anchors"],
                        each["native"],
                    )
                    == (source, target, "is gone", size, count)
                ]
            )
            and same[0]["re-embed"] - same[0]["keep"] >= LEAST_GAP
        ]
        rows.append([f"{size:,}", str(count), f"{np.mean(shares):.2f}", f"{min(shares):.2f}"])
    return [["anchors", "n", "mean share of the gap", "worst pair"], *rows]


def main() -> None:
    """Measure, print and write."""
    command = parser(__doc__, RESULTS / "native.json")
    command.add_argument("--draws", type=int, default=5, help="draws of anchors")
    options = command.parse_args()
    try:
        data = cranfield()
    except Missing as error:
        sys.exit(str(error))
    documents = json.loads((CRANFIELD / "cranfield.json").read_text(encoding="utf-8"))["docs"]
    texts = [each["text"] for each in documents]
    by_text = {
        name: dict(zip(texts, vectors, strict=True)) for name, vectors in data.documents.items()
    }
    with tempfile.TemporaryDirectory() as name, served({"lancedb": name}, by_text) as service:
        for size, draw in itertools.product(ANCHORS, range(options.draws)):
            rows = anchor_rows(data, size, draw)
            sets = {each: packed(vectors[rows]) for each, vectors in data.documents.items()}
            service.post("/anchor-sets", name=f"set-{size}-{draw}", embeddings=sets)
        for encoder, vectors in data.documents.items():
            filled = fill_lance(Path(name), encoder, vectors, texts)
            service.post("/stores", name=encoder, address="lancedb", encoder=encoder, **filled)
        cells = measure(service, data, options.draws)
    tables = tables_of(cells)
    show(Console(width=max(140, Console().width)), tables)
    write(options.json, tables, {"cells": cells})


if __name__ == "__main__":
    main()
