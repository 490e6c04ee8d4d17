"""The requests of the golden replay: every route and format once, with fixed seeds.

Each step is sent in this order to one service, so later steps may use what earlier ones made.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from app.demo.pack import load_pack

NPY = "application/x-npy"
PAIR = {"source": "first", "target": "second", "anchor_set": "items"}
REAL = {"source": "a", "target": "b", "anchor_set": "intents"}
TEXTS = ["I lost my card.", "What is the exchange rate?", "My transfer failed."]


@dataclass(frozen=True)
class Step:
    """One request. `{key}` in the path or the JSON is the value that an earlier step kept."""

    name: str
    method: str
    path: str
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: fields of the answer that later steps use
    keep: Mapping[str, str] = field(default_factory=dict)
    #: whether the answer names a job, whose end is recorded instead
    job: bool = False


def npy(*arrays: np.ndarray) -> bytes:
    """Arrays as .npy files, one after the other."""
    body = io.BytesIO()
    for array in arrays:
        np.save(body, array)
    return body.getvalue()


def packed(vectors: np.ndarray) -> dict[str, Any]:
    """Vectors as base64 with dtype and shape."""
    data = np.ascontiguousarray(vectors)
    return {
        "dtype": str(data.dtype),
        "shape": list(data.shape),
        "base64": base64.b64encode(data.tobytes()).decode(),
    }


def made_up() -> dict[str, np.ndarray]:
    """40 items by two made-up encoders, 8-d and 6-d: a rotated part of the first, with noise."""
    generator = np.random.default_rng(7)
    first = generator.normal(size=(40, 8)) + 0.5
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))
    second = 3.0 * (first @ rotation)[:, :6] + 0.05 * generator.normal(size=(40, 6)) - 2.0
    return {"first": first, "second": second}


def steps() -> list[Step]:
    """All requests, in their order."""
    items, vectors = made_up(), np.random.default_rng(11).normal(size=(3, 8))
    return [
        *_encoders(),
        *_anchor_sets(items),
        *_translations(items, vectors),
        *_quality(items),
        *_heads(items, vectors),
        *_relevance(items),
        *_jobs(items),
        *_stores(),
        *_refusals(vectors),
        *_rest(),
    ]


def post(name: str, path: str, json: Any, **more: Any) -> Step:
    return Step(name, "POST", path, json, **more)


def get(name: str, path: str, **more: Any) -> Step:
    return Step(name, "GET", path, **more)


def _encoders() -> Iterator[Step]:
    dims = {"first": 8, "second": 6, **{name: each.shape[1] for name, each in _real().items()}}
    for name, dim in dims.items():
        yield post(f"encoder {name}", "/encoders", {"name": name, "kind": "external", "dim": dim})
    yield post(
        "encoder minilm",
        "/encoders",
        {"name": "minilm", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"},
    )
    yield get("encoders", "/encoders?limit=3")
    yield get("one encoder", "/encoders/first")


def _real() -> dict[str, np.ndarray]:
    """Vectors of the demo's sentences by three real encoders, a, b and c."""
    vectors = load_pack().vectors
    return {
        name: each.numpy() for name, each in zip("abc", list(vectors.values())[:3], strict=False)
    }


def _anchor_sets(items: dict[str, np.ndarray]) -> Iterator[Step]:
    real = _real()
    yield post(
        "set of lists",
        "/anchor-sets",
        {"name": "items", "embeddings": {name: each.tolist() for name, each in items.items()}},
    )
    yield post(
        "set of base64",
        "/anchor-sets",
        {
            "name": "intents",
            "embeddings": {name: packed(each[:300]) for name, each in real.items()},
        },
    )
    yield Step(
        "set of npy",
        "POST",
        "/anchor-sets?name=grown&encoder=first",
        content=npy(items["first"][:20]),
        headers={"Content-Type": NPY},
    )
    yield Step(
        "embeddings of npy",
        "PUT",
        "/anchor-sets/grown/embeddings/second",
        content=npy(items["second"][:20]),
        headers={"Content-Type": NPY},
    )
    yield Step(
        "sample",
        "PUT",
        "/anchor-sets/items/samples/first",
        {"vectors": (items["first"] + 0.1).tolist(), "store_size": 1_000},
    )
    yield get("sets", "/anchor-sets?limit=2")
    yield get("one set", "/anchor-sets/items")
    yield get("report", "/anchor-sets/items/report")
    yield get("pairs", "/anchor-sets/items/pairs")


def _translations(items: dict[str, np.ndarray], vectors: np.ndarray) -> Iterator[Step]:
    body = {**PAIR, "vectors": vectors.tolist()}
    for method in ("auto", "irp", "irp-ridge", "graded", "procrustes", "ridge"):
        yield post(f"translate by {method}", "/translate", {**body, "method": method})
    yield post(
        "translate with options",
        "/translate",
        {**body, "method": "graded", "options": {"ridge": 0.3, "renormalise": False}},
    )
    yield post("translate to base64", "/translate", {**body, "encoding": "base64"})
    yield post(
        "translate real vectors", "/translate", {**REAL, "vectors": packed(_real()["a"][300:303])}
    )
    query = "source=first&target=second&anchor_set=items&method=graded"
    for accept in ("application/json", NPY):
        yield Step(
            f"translate {NPY} to {accept}",
            "POST",
            f"/translate?{query}",
            content=npy(vectors),
            headers={"Content-Type": NPY, "Accept": accept},
        )
    relative = {"encoder": "first", "anchor_set": "items", "vectors": vectors.tolist()}
    yield post("relative", "/relative", relative)
    yield post("relative of a power", "/relative", {**relative, "encode_power": 0.5, "ridge": 1.0})
    yield Step(
        "relative of npy",
        "POST",
        "/relative?encoder=first&anchor_set=items",
        content=npy(vectors.astype(np.float16)),
        headers={"Content-Type": NPY, "Accept": NPY},
    )
    unit = (items["first"] - items["first"].mean(0)) @ vectors.T
    yield post(
        "translate from relative",
        "/translate",
        {**PAIR, "method": "irp-ridge", "relative": unit.T.tolist(), "relative_power": 0},
    )
    yield post("relative of texts", "/relative", {**relative, "vectors": None, "inputs": TEXTS})
    yield post(
        "a set of texts",
        "/anchor-sets",
        {"name": "texts", "inputs": _sentences(), "encoders": ["minilm"]},
        job=True,
    )
    yield post(
        "relative of texts by a model",
        "/relative",
        {"encoder": "minilm", "anchor_set": "texts", "inputs": TEXTS},
    )
    yield post("embeddings of OpenAI", "/v1/embeddings", {"model": "minilm", "input": TEXTS[:2]})
    yield post(
        "unknown model of OpenAI", "/v1/embeddings", {"model": "nothing", "input": TEXTS[:2]}
    )
    yield get("models", "/v1/models")
    yield get("one model", "/v1/models/minilm")
    yield Step("alias", "PUT", "/aliases/sentences", {"model": "minilm"})
    yield get("aliases", "/aliases")
    yield post(
        "embeddings of an alias", "/v1/embeddings", {"model": "sentences", "input": TEXTS[0]}
    )


def _sentences() -> list[str]:
    subjects = ("My card", "The bank", "A transfer", "This app")
    verbs = ("failed", "works", "is late", "was stolen", "costs money")
    return [f"{subject} {verb}." for subject in subjects for verb in verbs]


def _quality(items: dict[str, np.ndarray]) -> Iterator[Step]:
    yield post(
        "translator", "/translators", {**REAL, "method": "graded"}, keep={"translator": "id"}
    )
    yield post("translator of auto", "/translators", {**PAIR, "index": 1_000})
    yield get("translators", "/translators?limit=100")
    yield get("one translator", "/translators/{translator}?index=10000")
    yield get(
        "threshold",
        "/translators/{translator}/threshold?source=0.7&scores=translated-native",
    )
    yield get("file of a translator", "/translators/{translator}/file")
    yield post(
        "evaluate",
        "/evaluate",
        {
            **PAIR,
            "method": "graded",
            "vectors": items["first"][:12].tolist(),
            "native": items["second"][:12].tolist(),
            "k": 3,
        },
    )


def _heads(items: dict[str, np.ndarray], vectors: np.ndarray) -> Iterator[Step]:
    generator = np.random.default_rng(5)
    linear = {
        "weight": generator.normal(size=(3, 6)).tolist(),
        "bias": [0.1, 0.2, 0.3],
        "classes": ["x", "y", "z"],
    }
    yield post("linear head", "/heads", {"name": "linear", "encoder": "second", **linear})
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    file = save(dict(network.state_dict()))
    yield post(
        "MLP head",
        "/heads",
        {
            "name": "mlp",
            "encoder": "second",
            "classes": ["x", "y", "z"],
            "architecture": ["linear", "gelu", "linear"],
            "safetensors": base64.b64encode(file).decode(),
        },
    )
    relative = generator.normal(size=(3, 40)).tolist()
    yield post(
        "relative head",
        "/heads",
        {"name": "relative", "anchor_set": "items", **linear, "weight": relative},
    )
    yield get("heads", "/heads")
    yield get("one head", "/heads/mlp")
    body = {"encoder": "first", "anchor_set": "items", "vectors": vectors.tolist()}
    for head in ("linear", "mlp"):
        yield post(f"stitch {head}", "/stitch", {**body, "head": head, "method": "graded"})
    yield post("stitch relative", "/stitch", {**body, "head": "relative"})
    yield Step(
        "stitch of npy",
        "POST",
        "/stitch?encoder=first&head=linear&anchor_set=items&method=graded",
        content=npy(vectors),
        headers={"Content-Type": NPY, "Accept": NPY},
    )


def _relevance(items: dict[str, np.ndarray]) -> Iterator[Step]:
    generator = np.random.default_rng(3)
    queries, old = generator.normal(size=(2, 6)), generator.normal(size=(2, 8))
    blocks = [generator.normal(size=(count, 8)) for count in (4, 6)]
    body = {
        **PAIR,
        "method": "graded",
        "queries": queries.tolist(),
        "candidates": [
            {"ids": [f"{row}" for row in range(len(block))], "vectors": block.tolist()}
            for block in blocks
        ],
    }
    yield post("rescore", "/rescore", body)
    yield post(
        "rescore by fuse",
        "/rescore",
        {**body, "mode": "fuse", "old_queries": old.tolist(), "limit": 3},
    )
    rows = range(30)
    judged = {
        "queries": (items["second"][:30] + 0.01 * generator.normal(size=(30, 6))).tolist(),
        "old_queries": (items["first"][:30] + 1.5 * generator.normal(size=(30, 8))).tolist(),
        "documents": items["first"].tolist(),
        "native_documents": items["second"].tolist(),
        "judgements": [{"query": row, "document": row} for row in rows],
    }
    pair = {**PAIR, "method": "graded"}
    yield post("judged evaluation", "/evaluate", {**pair, **judged})
    yield post("advice without judgements", "/advice", pair)
    yield post("advice", "/advice", {**pair, "corpus_size": 1_000})


def _jobs(items: dict[str, np.ndarray]) -> Iterator[Step]:
    for name in ("first", "second"):
        yield Step(
            f"pool {name}",
            "PUT",
            f"/pools/{name}-pool",
            {"encoder": name, "vectors": items[name].tolist()},
        )
    yield post(
        "piece of a pool",
        "/pools/first-pool/vectors",
        {"offset": 40, "vectors": items["first"][:2].tolist()},
    )
    yield get("pools", "/pools")
    yield get("one pool", "/pools/first-pool")
    real = _real()
    yield post(
        "bootstrap by self-learning",
        "/bootstrap",
        {
            "name": "learned",
            "source": "a",
            "target": "c",
            "source_pool": packed(real["a"][300:480]),
            "target_pool": packed(real["c"][300:480]),
            "seeds": [[row, row] for row in range(30)],
            "min_precision": 0,
        },
        job=True,
        keep={"job": "id"},
    )
    yield get("events of a job", "/jobs/{job}/events")
    yield Step("cancel an ended job", "POST", "/jobs/{job}/cancel")
    yield Step("delete a pool", "DELETE", "/pools/second-pool")
    yield get("jobs", "/jobs?limit=1")


def _stores() -> Iterator[Step]:
    real = _real()
    yield post(
        "store",
        "/stores",
        {
            "name": "docs",
            "kind": "lancedb",
            "address": "main",
            "collection": "docs",
            "text_field": "text",
            "encoder": "a",
        },
    )
    yield get("stores", "/stores")
    yield get("one store", "/stores/docs")
    search = {"target": "b", "anchor_set": "intents", "k": 3}
    for mode in ("bridge", "cascade"):
        yield post(
            f"search by {mode}",
            "/stores/docs/search",
            {**search, "mode": mode, "queries": packed(real["b"][700:702])},
        )
    yield post(
        "search by fuse",
        "/stores/docs/search",
        {
            **search,
            "mode": "fuse",
            "queries": packed(real["b"][700:702]),
            "old_queries": packed(real["a"][700:702]),
        },
    )
    plan = {"store": "docs", "target": "b", "anchor_set": "intents", "min_recall": 0}
    yield post("plan of a migration", "/migrations", plan, job=True, keep={"migration": "id"})
    # the numbers are those of the recording, which has steps between
    for number, step in ((0, "run"), (1, "verify"), (5, "run"), (6, "abandon")):
        yield Step(
            f"{step} the migration, step {number}",
            "POST",
            f"/migrations/{{migration}}/{step}",
            job=True,
        )
    yield get("the migration", "/migrations/{migration}")
    yield get("migrations", "/migrations")
    yield Step("delete a store", "DELETE", "/stores/docs")


def _refusals(vectors: np.ndarray) -> Iterator[Step]:
    body = {**PAIR, "vectors": vectors.tolist()}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("unknown encoder", {"source": "nothing"}),
        ("unknown set", {"anchor_set": "nothing"}),
        ("unknown field", {"colour": 1}),
        ("wrong dimension", {"vectors": [[1.0, 2.0]]}),
        ("ragged rows", {"vectors": [[1.0] * 8, [1.0] * 7]}),
        ("zero row", {"vectors": [[0.0] * 8, [1.0] * 8]}),
        ("two sources of vectors", {"relative": [[0.1] * 40]}),
        ("no vectors", {"vectors": None}),
        ("unknown method", {"method": "magic"}),
        ("option of another method", {"method": "ridge", "options": {"omega": 3}}),
        ("high demands", {"min_quality": {"recall": 0.99999}}),
    ]
    for name, change in wrong:
        merged = {key: value for key, value in {**body, **change}.items() if value is not None}
        yield post(name, "/translate", merged)
    bad = vectors.copy()
    bad[1, 2] = np.nan
    query = "source=first&target=second&anchor_set=items"
    for name, content, kind in (
        ("NaN in npy", npy(bad), NPY),
        ("cut npy", npy(vectors)[:-9], NPY),
        ("no npy", b"hello", NPY),
        (
            "objects in npy",
            b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
            + b" " * 60,
            NPY,
        ),
        ("unknown type", b"1,2,3", "text/csv"),
        ("no JSON", b"{", "application/json"),
    ):
        yield Step(
            name, "POST", f"/translate?{query}", content=content, headers={"Content-Type": kind}
        )
    yield Step("method not allowed", "DELETE", "/translate")
    yield get("no route", "/nothing")
    yield get("unknown translator", "/translators/nothing")
    yield get("unknown job", "/jobs/nothing")
    yield get("wrong limit", "/encoders?limit=0")
    yield post(
        "set exists", "/anchor-sets", {"name": "items", "embeddings": {"first": [[1.0] * 8] * 3}}
    )
    yield post("wrong name", "/encoders", {"name": "a b", "kind": "external", "dim": 3})
    yield post("encoder exists", "/encoders", {"name": "first", "kind": "external", "dim": 3})
    yield post(
        "wrong head",
        "/heads",
        {"name": "bad", "encoder": "second", "weight": [[1.0]], "bias": [0.0], "classes": ["x"]},
    )
    yield post(
        "unknown head",
        "/stitch",
        {"encoder": "first", "head": "nothing", "vectors": vectors.tolist()},
    )
    yield post(
        "wrong seeds",
        "/bootstrap",
        {
            "name": "z",
            "source": "first",
            "target": "second",
            "source_pool": "first-pool",
            "target_pool": "first-pool",
            "seeds": [[0, 99]],
        },
    )
    yield post(
        "unknown address",
        "/stores",
        {"name": "x", "kind": "lancedb", "address": "nowhere", "collection": "c", "encoder": "a"},
    )
    yield post("unknown store", "/stores/nothing/search", {"target": "b", "queries": [[1.0] * 3]})
    yield Step("encoder in use", "DELETE", "/encoders/first")


def _rest() -> Iterator[Step]:
    yield post(
        "API key",
        "/api-keys",
        {"name": "reader", "scopes": ["read"]},
        keep={"key": "id"},
    )
    yield get("API keys", "/api-keys")
    yield get("audit", "/audit?limit=3")
    yield get("livez", "/livez")
    yield get("readyz", "/readyz")
    yield Step("delete a sample", "DELETE", "/anchor-sets/items/samples/first")
    yield Step("delete a head", "DELETE", "/heads/mlp")
    yield Step("delete an alias", "DELETE", "/aliases/sentences")
    yield Step("delete a set", "DELETE", "/anchor-sets/grown")
    yield get("deleted set", "/anchor-sets/grown")
