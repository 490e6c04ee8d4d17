"""A small encoder for the tests of batches, and functions that submit requests to it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch
from prometheus_client import REGISTRY

from app.encoders.models.base import Item, ModelIdentity
from app.encoders.models.batcher import Batcher
from app.types import Modality

LONG_S = 30.0


class Squares:
    """A small encoder: the vector of number x is (x, x^2). It records its batches.

    It only runs while its gate is open.
    """

    identity = ModelIdentity(model="squares", revision=None, normalise=False, dim=2)
    modality = Modality.text
    nbytes = 0
    dim = 2
    batch = 2_048

    def __init__(self, *, endpoint: str | None = None) -> None:
        self.endpoint = endpoint
        self.batches: list[list[Item]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def prepare(self, inputs, role):
        return [item(float(text)) for text in inputs]

    def run(self, items, is_abandoned):
        self.batches.append(list(items))
        self.entered.release()
        assert self.gate.wait(LONG_S)
        return self.vectors(items)

    def vectors(self, items):
        """Raises any input that is an error."""
        for each in items:
            if isinstance(each.features, BaseException):
                raise each.features
        return squares([item.features for item in items])


def squares(numbers):
    numbers = torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1)
    return torch.cat([numbers, numbers**2], dim=1)


def item(number, length=1):
    return Item(number, length, length)


def metric(name, **labels):
    return REGISTRY.get_sample_value(f"anchorage_{name}", labels) or 0.0


@contextmanager
def lanes(count=1, budget=32, most=10**6):
    """A batcher whose counts must be zero at the end."""
    waiting = metric("encode_waiting_inputs")
    batcher = Batcher(lanes=count, threads=None, budget=budget, most=most)
    try:
        yield batcher
        assert batcher._owners == {}
        assert metric("encode_waiting_inputs") == waiting
    finally:
        batcher.close()


@contextmanager
def hold_lanes(batcher, count=1):
    """Keep all lanes busy during the block, so that all requests of the block wait together."""
    plug = Squares()
    plug.gate.clear()
    works = []
    try:
        for _ in range(count):
            works.append(batcher.submit(plug, [item(0)], "plug", is_limited=False))
            assert plug.entered.acquire(timeout=LONG_S)
        yield
    finally:
        plug.gate.set()
        for work in works:
            work.future.result(LONG_S)


def result(work):
    return work.future.result(LONG_S)


def run_together(*requests, count=1, **options):
    """Run requests (model, items, owner) that wait together, and return their tasks."""
    with lanes(count, **options) as batcher:
        with hold_lanes(batcher, count):
            works = [batcher.submit(*request) for request in requests]
        for work in works:
            work.future.exception(LONG_S)
    return works


def order(model):
    """The batch of each input."""
    return {each.features: place for place, batch in enumerate(model.batches) for each in batch}
