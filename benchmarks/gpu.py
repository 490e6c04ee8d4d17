"""Does the service use an accelerator as well as the plain libraries do?

    python -m benchmarks.gpu                  # at most 8 minutes on a machine with a GPU
    python -m benchmarks.gpu --device cpu --small

Writes benchmarks/results/gpu.json.

Contestants alternate in one process, because other processes may share the machine; the table has
the median of each round's ratio, the library's time over the service's.

encoding     texts by all-MiniLM-L6-v2 through the service's batcher, in 1, 64 and 4 requests at
             once, beside one plain `SentenceTransformer.encode`; images by a resnet18 of
             timm with random weights, beside the plain model in eval mode
translation  1,000,000 x 768 by a linear map, beside torch.mm of the same vectors and matrix
fit          the graded map of 4,096 anchors beside its formula in torch, in float64
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from app.encoders.models.base import EncoderModel, EncoderSpec, Input, ModelSources
from app.encoders.models.pool import EncoderPool
from app.encoders.models.torchvision_ops import import_timm
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from app.types import InputRole
from benchmarks.common import RESULTS, Table, parser, show, write

WORDS = "the card was lost and my bank account needs a new limit before payment is due"
#: requests of texts at once, and the texts of each
CASES = ((1, 500), (64, 1), (4, 256))
TIMM, DIM, ANCHORS = "resnet18", 768, 4_096
#: options of the fit, and least ratios
GRADED: methods.Options = {"encode_power": 1.0, "decode_power": 0.25, "ridge": 1.0}
ENCODING, TRANSLATION, FIT = 0.9, 0.9, 0.8
#: one measurement: what, how much, the least ratio, the library's call and the service's
Row = tuple[str, str, float, Callable[[], object], Callable[[], object]]


def seconds(call: Callable[[], object], device: str) -> float:
    """How long a call takes, the device's work included."""
    begun = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def serve(pool: EncoderPool, model: EncoderModel, inputs: list[Input], requests: int) -> None:
    """Send the inputs in equal requests at once."""
    size = len(inputs) // requests

    def send(start: int) -> Tensor:
        items = model.prepare(inputs[start : start + size], InputRole.document)
        return pool.submit(model, items, "benchmark").future.result()

    with ThreadPoolExecutor(requests) as clients:
        list(clients.map(send, range(0, len(inputs), size)))


def of_texts(pool: EncoderPool, share: int) -> Iterator[Row]:
    """MiniLM, by the number of requests at once."""
    model = pool.get(EncoderSpec("sentence-transformers", "all-MiniLM-L6-v2"))
    library = model._model  # type: ignore[attr-defined]
    draw = random.Random(0)  # noqa: S311
    for requests, size in CASES:
        texts: list[Input] = [
            " ".join(draw.choices(WORDS.split(), k=draw.randint(4, 16)))
            for _ in range(requests * max(1, size // share))
        ]
        plain = partial(library.encode, texts, show_progress_bar=False)
        what = f"{requests} x {len(texts) // requests} texts"
        yield "MiniLM", what, ENCODING, plain, partial(serve, pool, model, texts, requests)


def of_images(pool: EncoderPool, folder: Path, share: int) -> Iterator[Row]:
    """A timm model, which is written to the folder of models first."""
    timm = import_timm()
    network = timm.create_model(TIMM, num_classes=10)
    timm.models.save_for_hf(network, folder / TIMM, safe_serialization=True)
    model = pool.get(EncoderSpec("timm", TIMM))
    network = network.eval().to(pool.device)
    network.reset_classifier(0)
    pixels = np.random.default_rng(0).integers(0, 256, (512 // share, 64, 64, 3), np.uint8)
    images: list[Input] = []
    for each in pixels:
        Image.fromarray(each).save(file := BytesIO(), "png")
        images.append(file.getvalue())

    def plain() -> Tensor:
        batch = torch.stack([item.features for item in model.prepare(images, InputRole.document)])
        with torch.inference_mode():
            found: Tensor = network(batch.to(pool.device)).cpu()
        return found

    ours = partial(serve, pool, model, images, 1)
    yield TIMM, f"{len(images)} images", ENCODING, plain, ours


def of_vectors(device: str, share: int) -> Iterator[Row]:
    """A translation and a fit."""
    generator = torch.Generator().manual_seed(0)
    count = ANCHORS // share
    spread = torch.linspace(1, 0.05, DIM)
    x = torch.randn(count, DIM, generator=generator) * spread + 0.1
    y = x @ torch.linalg.qr(torch.randn(DIM, DIM, generator=generator)).Q

    def ours() -> object:
        options = methods.resolve("graded", GRADED, anchors=count)
        return methods.fit("graded", fit_space(x), fit_space(y), options)

    def whiten(side: Tensor, power: float) -> tuple[Tensor, Tensor]:
        rows = side.double() - side.double().mean(dim=0)
        unit = rows / rows.norm(dim=1, keepdim=True)
        _, values, right = torch.linalg.svd(unit, full_matrices=False)
        return unit, (right.T * (values.square() + 1.0).pow(-power)) @ right

    def plain() -> Tensor:
        (unit_x, left), (unit_y, right) = whiten(x, 1.0), whiten(y, 0.25)
        return left @ (unit_x.T @ unit_y) @ right

    yield "fit, graded", f"{count:,} x {DIM}", FIT, plain, ours
    options = methods.resolve("graded", GRADED, anchors=count)
    translator = methods.fit("graded", fit_space(x.to(device)), fit_space(y.to(device)), options)
    many = x.to(device).repeat(max(1, 1_000_000 // share // count + 1), 1)[: 1_000_000 // share]
    matrix = translator.decoder.matrix
    what = f"{len(many):,} x {DIM}"
    product = partial(torch.mm, many, matrix)
    yield "translation, linear", what, TRANSLATION, product, partial(apply, translator, many)


def measure(device: str, rounds: int, share: int) -> Table:
    """The table; `share` divides all amounts."""
    folder = Path(tempfile.mkdtemp(prefix="anchorage-gpu-"))
    pool = EncoderPool(ModelSources(folder=folder), device=device)
    table = [["what", "amount", "library, s", "service, s", "ratio", "asked", "met"]]
    for rows in (of_texts(pool, share), of_images(pool, folder, share), of_vectors(device, share)):
        for what, amount, least, plain, ours in rows:
            pairs = [(seconds(plain, device), seconds(ours, device)) for _ in range(rounds + 1)]
            one, two = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
            ratio = statistics.median(first / second for first, second in pairs[1:])
            met = "yes" if ratio >= least else "no"
            numbers = [f"{one:.3f}", f"{two:.3f}", f"{ratio:.2f}", f"{least:g}", met]
            table.append([what, amount, *numbers])
    pool.close()
    shutil.rmtree(folder)
    return table


def main() -> None:
    """Measure, show and write."""
    command = parser(__doc__, RESULTS / "gpu.json")
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--rounds", type=int, default=7)
    command.add_argument("--small", action="store_true", help="a sixteenth of everything")
    options = command.parse_args()
    device = options.device
    tables = {device: measure(device, options.rounds, 16 if options.small else 1)}
    show(Console(width=max(120, Console().width)), tables)
    write(options.json, tables)


if __name__ == "__main__":
    main()
