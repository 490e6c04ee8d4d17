"""What a translation saves: the encoder that would have to read every text again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import torch

from app.demo.pack import load_pack
from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.text import load
from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.scaling.figures import Grid, Rounds, Row, Section, Target
from benchmarks.service import Connection, make_set, npy, register, serve

MODEL, SOURCE = "all-MiniLM-L6-v2", "minilm6-384"
DIMS = (384, 768)
ANCHORS, VECTORS, SENTENCES = 1_000, 4_096, 1_024
BUNDLE = 20
TIMES_FASTER = 500.0

NOTE = (
    f"Sentences of Banking77 by {MODEL}: encoded anew, {SENTENCES:,} in one batched encode of "
    "sentence-transformers in this process (float32, all of torch's threads); and translated, "
    f"{VECTORS:,} of their vectors, {DIMS[0]} -> {DIMS[1]}, {ANCHORS:,} anchors, as one npy body "
    f"over loopback, {BUNDLE} requests in every round, and by "
    "app.maths.translators.translator.apply in this process, on one thread. The server is stopped "
    "while it is not asked. The target's space is made up: the source's, rotated, with noise."
)


def measure(quick: bool) -> Section:
    """All contestants in every round, and ratios within it."""
    rounds, sentences = (2, 128) if quick else (5, SENTENCES)
    pack = load_pack()
    model = load(EncoderSpec("sentence-transformers", MODEL), ModelSources(), "cpu")._model  # type: ignore[attr-defined]
    batch = list(itertools.islice(itertools.cycle(pack.sentences), sentences))
    native = pack.vectors[SOURCE].numpy()
    apart = float(np.abs(model.encode(batch[:32], show_progress_bar=False) - native[:32]).max())
    assert apart < 1e-2, f"the model is not the one that made the pack's vectors: {apart:.1e} apart"
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(DIMS[1], DIMS[0])))[0].T
    made = (native[:ANCHORS] @ rotation + 0.01 * generator.normal(size=(ANCHORS, DIMS[1]))).astype(
        np.float32
    )
    vectors = np.resize(native, (VECTORS, DIMS[0]))
    translator = methods.fit(
        "graded",
        fit_space(torch.from_numpy(native[:ANCHORS])),
        fit_space(torch.from_numpy(made)),
        methods.resolve("graded", {}, anchors=ANCHORS),
    )
    body, cores = npy(vectors), torch.get_num_threads()
    encoded, served, maths = "encoded anew", "translated, over HTTP", "translated, the maths alone"
    found: dict[str, list[float]] = {name: [] for name in (encoded, served, maths)}
    with serve() as server:
        connection = Connection(server.port)
        register(connection, {"old": DIMS[0], "new": DIMS[1]})
        make_set(connection, "items", {"old": native[:ANCHORS], "new": made})
        for turn in range(-1, rounds):
            with server.asleep():
                encode = _rate(sentences, lambda: model.encode(batch, show_progress_bar=False))
                torch.set_num_threads(1)
                alone = _rate(VECTORS, lambda: apply(translator, torch.from_numpy(vectors)), BUNDLE)
                torch.set_num_threads(cores)
            http = _rate(
                VECTORS,
                lambda: connection.ask("/translate?source=old&target=new&anchor_set=items", body),
                BUNDLE,
            )
            if turn >= 0:
                for name, rate in ((encoded, encode), (served, http), (maths, alone)):
                    found[name].append(rate)
    rows: dict[int | str, Row] = {}
    for name, rates in found.items():
        beside = Rounds([rate / anew for rate, anew in zip(rates, found[encoded], strict=True)])
        rows[name] = {
            "vectors/s": Rounds(rates),
            **({} if name == encoded else {"times faster": beside}),
        }
    faster = rows[served]["times faster"]
    assert isinstance(faster, Rounds)
    target = Target(
        "translated over HTTP: times faster than encoded anew", faster.median, TIMES_FASTER, 1
    )
    return Section(NOTE, [Grid("Translated or encoded anew", "", rows)], targets=[target])


def _rate(count: int, call: Callable[[], object], times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return times * count / (time.perf_counter() - started)
