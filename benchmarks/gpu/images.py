"""Images a second of an image encoder in the service, compared with its bare forward pass and with
decoding alone.

Photographs of 500 x 375 pixels as JPEG files, a model of timm with random weights. Forward: the
bare model on tensors of the device in this process. Decoding: the service's own checks, decoder and
preprocessing in this process, on one thread and on as many as there are cores. Service: clients
with eight images a request, through /v1/embeddings as base64.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import pybase64

from app.encoders import vision
from app.encoders.base import EncoderSpec, ModelSources
from app.types import InputRole
from benchmarks.gpu import models
from benchmarks.gpu.device import watched
from benchmarks.gpu.report import Table, number
from benchmarks.gpu.run import Run
from benchmarks.gpu.servers import client_processes, load, post, serve

NAME = "images"
TITLE = "Images a second"

#: architectures, different photographs, images of a load, rounds
SIZES: dict[str, tuple[tuple[str, ...], int, int, int]] = {
    "cpu": (("resnet10t",), 32, 64, 2),
    "cuda": (("resnet50", "vit_base_patch16_224"), 512, 4_096, 3),
}
#: images of one forward pass, of one request, and clients
BATCH, EACH, CLIENTS = {"cpu": 16, "cuda": 256}, 8, 16


def measure(run: Run) -> dict[str, Any]:
    """Rates and ratios by architecture."""
    architectures, different, total, rounds = SIZES[run.device.name]
    files = models.photographs(different)
    for architecture in architectures:
        models.make_image_model(run.folder, architecture)
    found: dict[str, Any] = {}
    with serve(run, "images", {}) as server:
        for architecture in architectures:
            encoder = {"name": architecture, "kind": "timm", "model": architecture}
            post(server, "/encoders", encoder)
            requests = _requests(server.request, architecture, files, total)
            alone = _alone(run, architecture, files)
            served = []
            busy_shares = []
            for turn in range(-1, rounds):
                with watched(run.device) as busy:
                    loaded = load(server, requests, clients=CLIENTS, processes=client_processes())
                if turn >= 0:
                    served.append(total / loaded.seconds)
                    busy_shares += [] if busy.share is None else [busy.share]
            rate = median(served)
            bound = min(alone["forward"], alone["decoding, all cores"])
            found[architecture] = {
                **alone,
                "service": rate,
                "of_forward": rate / alone["forward"],
                "of_the_slower_stage": rate / bound,
                "gpu_busy": median(busy_shares) if busy_shares else None,
            }
    size = sum(map(len, files)) / len(files)
    return {"file_bytes": size, "cores": os.cpu_count(), "architectures": found}


def tables(report: dict[str, Any]) -> list[Table]:
    """One row for each architecture."""
    rows = [
        [
            name,
            *(number(row[key]) for key in ("forward", "decoding, one thread")),
            *(number(row[key]) for key in ("decoding, all cores", "service", "of_forward")),
            *(number(row[key]) for key in ("of_the_slower_stage", "gpu_busy")),
        ]
        for name, row in report["architectures"].items()
    ]
    columns = [
        "model",
        "forward alone",
        "decoding, one thread",
        f"decoding, {report['cores']} threads",
        "service",
        "of forward",
        "of the slower of both",
        "GPU busy",
    ]
    return [Table(TITLE, columns, rows)]


def _requests(
    request: Callable[[str, bytes], bytes], model: str, files: list[bytes], total: int
) -> list[bytes]:
    texts = itertools.cycle([pybase64.b64encode_as_string(file) for file in files])
    return [
        request(
            "/v1/embeddings",
            json.dumps(
                {
                    "model": model,
                    "input": list(itertools.islice(texts, EACH)),
                    "encoding_format": "base64",
                }
            ).encode(),
        )
        for _ in range(total // EACH)
    ]


def _alone(run: Run, architecture: str, files: list[bytes]) -> dict[str, float]:
    """Images a second of the forward pass and of decoding, in this process."""
    spec = EncoderSpec("timm", architecture)
    encoder = vision.load(spec, ModelSources(run.folder), run.device.name)
    batch = BATCH[run.device.name]
    forward = models.bare_image_model(run.folder / architecture, run.device.name, batch)
    times = [run.device.seconds(forward) for _ in range(4)]

    def decode(file: bytes) -> None:
        encoder.prepare([file], InputRole.document)

    started = time.perf_counter()
    for file in files:
        decode(file)
    one = len(files) / (time.perf_counter() - started)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = time.perf_counter()
        list(pool.map(decode, files * 2))
        every = 2 * len(files) / (time.perf_counter() - started)
    return {
        "forward": batch / median(times[1:]),
        "decoding, one thread": one,
        "decoding, all cores": every,
    }
