"""How long a fit takes, and how long another process takes to get a fitted translator."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redis import Redis
from redis.exceptions import RedisError

from app.maths.geometry.space import Space, fit_space
from app.maths.geometry.spectrum import kept_svd
from app.maths.translators import methods
from app.maths.translators.translator import Translator, make_translator
from app.services.anchors import anchor_sets
from app.services.encoders import encoders
from app.services.request_context import RequestContext
from app.services.translators import translators
from app.settings import Settings
from app.types import EncoderKind
from app.wiring import make_services
from benchmarks.scaling.data import Matrix, embeddings
from benchmarks.scaling.figures import Grid, Rounds, Row, Section, Target, take_turns

DIM, ANCHORS = 768, 1_000
METHODS = ("irp", "graded", "procrustes", "ridge")
RIDGES = np.logspace(-2, 2, 12)
SECONDS, FETCH_MS = 1.5, 20.0

#: the translator that two processes ask for
REQUEST = translators.FitRequest("a", "b", "items", "irp", {})

NOTE = (
    "From float32 anchors to a translator, both spaces fitted anew each time, with all of torch's "
    "threads. irp has its defaults (omega 8, delta 0.6). ridge, searched: the best of "
    f"{len(RIDGES)} lambdas from 0.01 to 100 by generalised cross-validation on one SVD of the "
    "source's anchors; app.maths has no search yet, so it is this benchmark's own. Redis: a "
    "second process, new Services in every round, so nothing is in its memory and its connections "
    "are new."
)


def fit(method: str, source: Matrix, target: Matrix) -> Translator:
    """Fit from raw anchors."""
    options = methods.resolve(method, {}, anchors=len(source))
    return methods.fit(method, *fit_spaces(source, target), options)


def fit_spaces(source: Matrix, target: Matrix) -> tuple[Space, Space]:
    return fit_space(torch.from_numpy(source)), fit_space(torch.from_numpy(target))


def ridge_searched(
    source: Space, target: Space, ridges: Sequence[float] = tuple(RIDGES)
) -> tuple[Translator, float]:
    """Ridge regression, and the lambda with the least |Y - H Y|^2 / (k - trace H)^2 (Golub, Heath
    and Wahba 1979).

    With U_x = W diag(s) V^T all lambdas share W^T U_y; H has the trace sum_j s_j^2 / (s_j^2 +
    lambda), and one more for the mean.
    """
    left, values, right, _ = kept_svd(source.unit)
    along = left.T @ target.unit
    energy = along.square().sum(dim=1)
    beyond = target.unit.square().sum() - energy.sum()

    def score(ridge: float) -> float:
        kept = values.square() / (values.square() + ridge)
        return float(
            (beyond + ((1 - kept).square() * energy).sum()) / (source.size - 1 - kept.sum()) ** 2
        )

    best = min(ridges, key=score)
    matrix = right.T @ ((values / (values.square() + best))[:, None] * along)
    return make_translator(source, target, matrix), float(best)


def measure(quick: bool, redis_url: str) -> Section:
    """All methods in every round; then the two processes."""
    source, target = embeddings(ANCHORS, (DIM, DIM))
    best = _check_search(*fit_spaces(source, target))
    found = take_turns(
        {
            "spaces alone": partial(fit_spaces, source, target),
            **{name: partial(fit, name, source, target) for name in METHODS},
            "ridge, searched": lambda: ridge_searched(*fit_spaces(source, target)),
        },
        3 if quick else 9,
        warm=1,
    )
    rows: dict[int | str, Row] = {name: {"ms": times} for name, times in found.items()}
    rows["ridge, searched"]["lambda"] = best
    targets = [
        Target(f"{name}, s", rows_.median / 1e3, SECONDS, -1)
        for name, rows_ in found.items()
        if name != "spaces alone"
    ]
    grids = [Grid(f"Fits: {ANCHORS:,} anchors, {DIM} -> {DIM}", "method", rows)]
    fetched = _through_redis(source, target, redis_url, 5 if quick else 30)
    if fetched is not None:
        grids.append(fetched)
        for row in ("second process: cache fetch alone", "second process: the whole call"):
            times = fetched.rows[row]["ms"]
            assert isinstance(times, Rounds)
            targets.append(Target(f"{row}, ms", times.median, FETCH_MS, -1))
    return Section(NOTE, grids, targets=targets)


def _check_search(x: Space, y: Space) -> float:
    """Check that with its chosen lambda, the search's translator is that of app.maths."""
    searched, best = ridge_searched(x, y)
    plain = methods.fit("ridge", x, y, methods.resolve("ridge", {"ridge": best}, anchors=x.size))
    apart = (searched.decoder.matrix - plain.decoder.matrix).norm() / plain.decoder.matrix.norm()
    assert apart < 1e-5, f"the searched ridge is another translator: {apart:.1e} apart"
    return best


def _through_redis(source: Matrix, target: Matrix, redis_url: str, rounds: int) -> Grid | None:
    """One process fits and stores a translator, another reads it; None without a Redis."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"scaling-{Path(folder).name}"
        settings = Settings(
            data_dir=Path(folder), redis_url=redis_url, redis_prefix=prefix, database_url=None
        )
        try:
            with _swept(redis_url, prefix) as client:
                services = make_services(settings)
                services.db.migrate()
                for name in ("a", "b"):
                    encoders.create_encoder(
                        services,
                        RequestContext("default"),
                        name=name,
                        kind=EncoderKind.external,
                        dim=DIM,
                    )
                made = {"a": torch.from_numpy(source), "b": torch.from_numpy(target)}
                anchor_sets.create_anchor_set(
                    services, RequestContext("default"), name="items", embeddings=made
                )
                pair = translators.find_pair(services, "default", REQUEST)
                started = time.perf_counter()
                fitted = translators.fit(services, RequestContext("default"), *pair, REQUEST)
                first = (time.perf_counter() - started) * 1e3
                entry = max(
                    client.strlen(key) for key in client.scan_iter(f"{prefix}:cache:translator:*")
                )
                services.close()
                seconds = _second_process(folder, redis_url, prefix, rounds)
        except RedisError as error:
            print(f"no Redis at {redis_url}, so nothing is fetched: {error}", file=sys.stderr)
            return None
    assert seconds["translator"] == fitted.id, "the second process has another translator"
    rows: dict[int | str, Row] = {
        "first process: fits, keeps, writes down": {"ms": first},
        "second process: cache fetch alone": {"ms": Rounds(seconds["fetch_ms"])},
        "second process: the whole call": {"ms": Rounds(seconds["call_ms"])},
        "second process: the same, once more": {"ms": Rounds(seconds["again_ms"])},
    }
    return Grid(f"A translator from Redis: an entry of {entry / 2**20:.1f} MiB", "", rows)


def _second_process(folder: str, redis_url: str, prefix: str, rounds: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.scaling.fetch",
        folder,
        redis_url,
        prefix,
        str(rounds),
    ]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
    found: dict[str, Any] = json.loads(made.stdout)
    return found


@contextmanager
def _swept(redis_url: str, prefix: str) -> Iterator[Redis]:
    """A connection to Redis. Deletes the keys of the prefix in the end."""
    with Redis.from_url(redis_url) as client:
        client.ping()
        try:
            yield client
        finally:
            for key in client.scan_iter(f"{prefix}:*"):
                client.delete(key)
