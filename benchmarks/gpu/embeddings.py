"""Sentences a second of /v1/embeddings, compared with plain batched `encode` on the same device.

Plain: sentence-transformers in this process, all sentences in one call, with the fastest of several
batch sizes. The clients send different sentences of a few words; each sends its next request once
it has its answer. All contestants take turns in one run; the numbers are medians of the rounds and
of each round's ratio to plain.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pybase64

from app.demo.pack import load_pack
from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.text import load as load_encoder
from app.types import InputRole
from benchmarks.common import Missing
from benchmarks.gpu import models
from benchmarks.gpu.device import watched
from benchmarks.gpu.report import Table, number
from benchmarks.gpu.run import Run
from benchmarks.gpu.servers import (
    Loaded,
    Target,
    backing,
    client_processes,
    load,
    metrics,
    post,
    serve,
)
from benchmarks.service import started

NAME = "embeddings"
TITLE = "/v1/embeddings compared with plain batched encode"
PLAIN = "plain encode"

#: API processes of the further deployments, which share one model host for each device
PROCESSES = {"cpu": (2,), "cuda": (2, 4, 8)}
#: model and dtype -> clients, sentences of a request, all sentences
LOADS = {
    "cpu": {
        (models.MINILM, "float32"): [(64, 1, 1_024), (4, 256, 1_024)],
        (models.BERT_BASE, "float32"): [(64, 1, 64), (4, 32, 128)],
    },
    "cuda": {
        (models.MINILM, "float32"): [(64, 1, 16_384), (4, 256, 65_536)],
        (models.BERT_BASE, "float32"): [(64, 1, 8_192), (4, 256, 32_768)],
        (models.MINILM, "bfloat16"): [(64, 1, 16_384), (4, 256, 65_536)],
        (models.BERT_BASE, "bfloat16"): [(64, 1, 8_192), (4, 256, 32_768)],
    },
}
BATCH_SIZES = {"cpu": [32], "cuda": [32, 128, 512]}
ROUNDS = {"cpu": 2, "cuda": 5}
#: largest difference from the library's numbers, by dtype
TOLERANCES = {"float32": 1e-3, "bfloat16": 3e-2}
#: sentences of the stages that are measured in this process
STAGE_SENTENCES = 64


def measure(run: Run) -> dict[str, Any]:
    """Rates, ratios and latencies by model, load and server."""
    texts = load_pack().sentences
    report: dict[str, Any] = {
        "stage_sentences": STAGE_SENTENCES,
        "models": {},
        "left_out": {},
    }
    with ExitStack() as ending:
        places = {models.MINILM: models.packaged_minilm()}
        places[models.BERT_BASE] = models.make_bert_base(run.folder)
        servers = _servers(run, ending, places, report["left_out"])
        for (model, dtype), loads in LOADS[run.device.name].items():
            report["models"][f"{model}, {dtype}"] = _measure_model(
                run, servers, texts, places[model], (model, dtype), loads
            )
    return report


def tables(report: dict[str, Any]) -> list[Table]:
    """One table for rates, and one for the time of a request."""
    rates, times = [], []
    for model, found in report["models"].items():
        for clients, servers in found["loads"].items():
            for server, row in servers.items():
                rates.append(
                    [
                        model,
                        clients,
                        server,
                        number(row["per_s"]),
                        number(row["ratio"]),
                        number(row.get("p50_ms")),
                        number(row.get("p99_ms")),
                        number(row.get("gpu_busy")),
                    ]
                )
                if stages := row.get("stages"):
                    times.append(
                        [model, clients, server, *(number(stages.get(key)) for key in STAGES)]
                    )
    alone = [
        [model, *(number(found["alone_ms"][key]) for key in ALONE)]
        for model, found in report["models"].items()
    ]
    rate_columns = ["model", "clients x sentences", "server", "sentences/s", "ratio to plain"]
    return [
        Table(TITLE, [*rate_columns, "p50 ms", "p99 ms", "GPU busy"], rates),
        Table(
            "Where the time of a request goes, by the service's metrics",
            ["model", "clients x sentences", "server", *STAGES],
            times,
        ),
        Table(
            f"The stages of {report['stage_sentences']} sentences in one process, ms",
            ["model", *ALONE],
            alone,
        ),
    ]


#: what a request's time is divided into, from the metrics
STAGES = ("request ms", "queue ms", "inputs of a batch", "padding")
ALONE = ("tokenise", "run", "serialise")


def _servers(
    run: Run, ending: ExitStack, places: dict[str, Path], left_out: dict[str, str]
) -> dict[str, Target]:
    """Every contestant that can be started or that the operator names, by its name."""
    found = {"one process": ending.enter_context(serve(run, "one", {}))}
    try:
        settings = ending.enter_context(backing(run))
        for count in PROCESSES[run.device.name]:
            name = f"several-{count}"
            found[f"{count} processes, one model host"] = ending.enter_context(
                serve(run, name, settings(name), processes=count)
            )
    except Missing as error:
        left_out["several processes"] = str(error)
    for target in found.values():
        for name, dtype in LOADS[run.device.name]:
            _register(target, name, dtype)
    if run.infinity is not None:
        found["infinity-emb"] = ending.enter_context(_infinity(run, run.infinity, places))
    else:
        left_out["infinity-emb"] = "not started; name its command with --infinity"
    for name, url in run.rivals.items():
        parts = urlsplit(url)
        assert parts.hostname is not None
        found[name] = Target(parts.hostname, parts.port or 80, parts.path.rstrip("/"), ours=False)
    return found


def _register(target: Target, model: str, dtype: str) -> None:
    options = {} if dtype == "float32" else {"dtype": dtype}
    named = models.PACKAGED if model == models.MINILM else model
    body = {"name": _served(model, dtype), "kind": "sentence-transformers", "model": named}
    post(target, "/encoders", {**body, "options": options})


def _served(model: str, dtype: str) -> str:
    """The name of an encoder; rivals serve float32 only."""
    return model if dtype == "float32" else f"{model}-{dtype}"


@contextmanager
def _infinity(run: Run, command: str, places: dict[str, Path]) -> Iterator[Target]:
    """infinity-emb as in its README, with the same precision and without telemetry."""
    arguments = [
        *itertools.chain.from_iterable(
            ("--model-id", str(place), "--served-model-name", name)
            for name, place in places.items()
        ),
        *("--url-prefix", "/v1", "--engine", "torch", "--device", run.device.name),
        *("--dtype", "float32", "--no-bettertransformer", "--log-level", "warning"),
    ]
    folder = run.folder / "infinity"
    folder.mkdir(exist_ok=True)
    # `started` chooses the port, and hands it over in a variable.
    arguments_with_port = "[*sys.argv[1:], '--port', os.environ['ANCHORAGE_PORT']]"
    launcher = f"import os, sys; os.execv(sys.argv[1], {arguments_with_port})"
    environment = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", **run.device.environment}
    whole = [sys.executable, "-c", launcher, command, "v2", *arguments]
    with started(whole, environment, folder) as server:
        yield Target("127.0.0.1", server.port, "/v1", ours=False)


def _measure_model(
    run: Run,
    servers: dict[str, Target],
    texts: list[str],
    place: Path,
    named: tuple[str, str],
    loads: Sequence[tuple[int, int, int]],
) -> dict[str, Any]:
    model, dtype = named
    served = _served(model, dtype)
    plain = models.sentence_model(place, run.device.name, dtype)
    expected = plain.encode(texts[:32], show_progress_bar=False, convert_to_numpy=True)
    answering = {
        name: target
        for name, target in servers.items()
        if target.ours or (dtype == "float32" and _answers(target, served))
    }
    apart = {
        name: _apart(target, served, texts[:32], expected, TOLERANCES[dtype])
        for name, target in answering.items()
    }
    size = _fastest_batch(run, plain, texts)
    found: dict[str, Any] = {}
    for clients, each, total in loads:
        batch = list(itertools.islice(itertools.cycle(texts), total))
        rounds: dict[str, list[Any]] = {}
        for turn in range(-1, ROUNDS[run.device.name]):
            seconds = run.device.seconds(
                lambda batch=batch: plain.encode(batch, batch_size=size, show_progress_bar=False)  # type: ignore[misc]
            )
            row: dict[str, Any] = {PLAIN: {"per_s": total / seconds}}
            for name, target in answering.items():
                row[name] = _one_round(run, target, served, batch, clients, each)
            for name, measured in row.items() if turn >= 0 else ():
                measured["ratio"] = measured["per_s"] / row[PLAIN]["per_s"]
                rounds.setdefault(name, []).append(measured)
        found[f"{clients} x {each}"] = {name: _medians(rows) for name, rows in rounds.items()}
    return {
        "plain_batch": size,
        "differences": apart,
        "loads": found,
        "alone_ms": _stages_alone(run, place, dtype, texts[:STAGE_SENTENCES]),
    }


def _answers(target: Target, served: str) -> bool:
    """Whether a rival serves this model."""
    try:
        post(target, "/embeddings", {"model": served, "input": ["one"]})
    except RuntimeError:
        return False
    return True


def _path(target: Target) -> str:
    return "/v1/embeddings" if target.ours else "/embeddings"


def _apart(target: Target, served: str, texts: list[str], expected: Any, tolerance: float) -> float:
    """The largest difference from the library's vectors. Raises RuntimeError if it is too large."""
    answer: Any = post(target, _path(target), {"model": served, "input": texts})
    vectors = np.array([item["embedding"] for item in answer["data"]])
    apart = float(np.abs(vectors - expected).max())
    if apart > tolerance:
        raise RuntimeError(f"{target.url} returns other vectors of {served}: {apart:.1e} apart")
    return apart


def _fastest_batch(run: Run, plain: Any, texts: list[str]) -> int:
    """The batch size at which plain `encode` is fastest."""
    sizes = BATCH_SIZES[run.device.name]
    if len(sizes) == 1:
        return sizes[0]
    times = {}
    for size in sizes:
        calls = [
            run.device.seconds(
                lambda size=size: plain.encode(texts, batch_size=size, show_progress_bar=False)  # type: ignore[misc]
            )
            for _ in range(3)
        ]
        times[size] = min(calls[1:])
    return min(times, key=lambda size: times[size])


def _one_round(
    run: Run, target: Target, served: str, batch: list[str], clients: int, each: int
) -> dict[str, Any]:
    requests = [
        target.request(
            _path(target),
            json.dumps(
                {"model": served, "input": batch[start : start + each], "encoding_format": "base64"}
            ).encode(),
        )
        for start in range(0, len(batch), each)
    ]
    before = metrics(target) if target.ours else {}
    with watched(run.device) as busy:
        loaded = load(target, requests, clients=clients, processes=client_processes())
    row: dict[str, Any] = _row(loaded, len(batch))
    row["gpu_busy"] = busy.share
    if target.ours:
        row["stages"] = _stages(before, metrics(target))
    return row


def _row(loaded: Loaded, sentences: int) -> dict[str, Any]:
    return {
        "per_s": sentences / loaded.seconds,
        "p50_ms": loaded.p50_ms,
        "p99_ms": loaded.p99_ms,
        "client_cores": loaded.client_cores,
    }


def _stages(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Means of one load, from the metrics before and after it.

    Every further histogram `anchorage_encode_..._seconds` of the service appears by its own name.
    """
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}

    def mean(name: str, route: str = "") -> float | None:
        count = grown.get(f"{name}_count{route}", 0.0)
        return grown[f"{name}_sum{route}"] / count if count else None

    found = {
        "request ms": mean("anchorage_request_seconds", " /v1/embeddings"),
        "queue ms": mean("anchorage_encode_wait_seconds"),
        "inputs of a batch": mean("anchorage_encode_batch_inputs"),
    }
    for name in grown:
        stage = name.removeprefix("anchorage_encode_").removesuffix("_seconds_count")
        if name == f"anchorage_encode_{stage}_seconds_count" and stage != "wait":
            found[f"{stage} ms"] = mean(f"anchorage_encode_{stage}_seconds")
    read, padding = (
        grown.get(f"anchorage_encode_tokens_total {kind}", 0.0) for kind in ("read", "padding")
    )
    found["padding"] = padding / (read + padding) if read else None
    return {
        name: value * 1e3 if name.endswith(" ms") else value
        for name, value in found.items()
        if value is not None
    }


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number over the rounds; the ratios of all rounds too."""
    found: dict[str, Any] = {"ratios": [row["ratio"] for row in rows]}
    for key in rows[0]:
        values = [row[key] for row in rows if row[key] is not None]
        if key == "stages":
            names = {name for value in values for name in value}
            found[key] = {
                name: median(value[name] for value in values if name in value)
                for name in sorted(names)
            }
        else:
            found[key] = median(values) if values else None
    return found


def _stages_alone(run: Run, place: Path, dtype: str, texts: list[str]) -> dict[str, float]:
    """Milliseconds of each stage of one request, by the service's own encoder in this process."""
    options = {} if dtype == "float32" else {"dtype": dtype}
    spec = EncoderSpec("sentence-transformers", place.name, options=options)
    encoder = load_encoder(spec, ModelSources(place.parent), run.device.name)
    items = encoder.prepare(texts, InputRole.document)
    vectors = encoder.run(items)

    def serialise() -> None:
        json.dumps([pybase64.b64encode_as_string(row.numpy().data) for row in vectors])

    calls = {
        "tokenise": lambda: encoder.prepare(texts, InputRole.document),
        "run": lambda: encoder.run(items),
        "serialise": serialise,
    }
    return {
        name: 1e3 * median(run.device.seconds(call) for _ in range(3))
        for name, call in calls.items()
    }
