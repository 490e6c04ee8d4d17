"""Models in memory: each is loaded once, and the least recently used is unloaded first."""

from __future__ import annotations

import weakref

import pytest
import torch

from app.encoders.models import pool as registry
from app.encoders.models.base import EncoderSpec, ModelIdentity
from app.encoders.models.pool import EncoderPool
from app.errors import EncoderUnavailable
from app.types import InputRole
from tests.encoders.models.squares import Squares, metric, result, squares


class Sized(Squares):
    """A small encoder. Its name ends with its number of bytes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.identity = ModelIdentity(model=name, revision=None, normalise=False, dim=2)
        self.nbytes = int(name.rpartition("-")[2])
        self.itself = self  # a reference cycle, as in modules


class Loader:
    """A loader that records the names of its models, and fails for names that start with bad."""

    def __init__(self) -> None:
        self.loads: list[str] = []

    def __call__(self, spec, shelf, device):
        self.loads.append(spec.model)
        if spec.model.startswith("bad"):
            raise EncoderUnavailable("no such model", field="model")
        if spec.model.startswith("broken"):
            raise KeyError("path/of/secret")
        return Sized(spec.model)


@pytest.fixture
def loader(monkeypatch):
    loader = Loader()
    monkeypatch.setitem(registry.LOADERS, "ones", loader)
    return loader


@pytest.fixture
def pool(loader):
    pool = EncoderPool(limit_bytes=100, cores=1)
    yield pool
    pool.close()


def spec(model, **options):
    return EncoderSpec("ones", model, options=options)


def test_only_equal_specifications_share_a_model(pool, loader):
    first = pool.get(spec("m-0", dim=3, dtype="float32"))
    assert pool.get(spec("m-0", dtype="float32", dim=3)) is first
    assert pool.loaded(spec("m-0", dtype="float32", dim=3)) is first
    assert pool.get(spec("m-0", dim=4)) is not first
    assert pool.get(EncoderSpec("ones", "m-0", "a-revision")) is not first
    assert pool.loaded(spec("m-0")) is None
    assert loader.loads == ["m-0"] * 3


@pytest.mark.parametrize(
    ("name", "says", "cause"),
    [("bad-1", "no such model", None), ("broken-1", r"cannot be loaded \(KeyError\)", KeyError)],
)
def test_a_load_that_fails_is_counted_and_the_next_request_retries(pool, loader, name, says, cause):
    refused = metric("model_loads_total", outcome="refused")
    for _ in range(2):
        with pytest.raises(EncoderUnavailable, match=says) as caught:
            pool.get(spec(name))
        assert caught.value.field == "model"
        assert cause is None or isinstance(caught.value.__cause__, cause)
        assert "secret" not in caught.value.detail
    assert loader.loads == [name] * 2
    assert metric("model_loads_total", outcome="refused") == refused + 2


def test_the_least_recently_used_model_is_unloaded_when_bytes_run_out(pool, loader):
    unloaded = metric("model_loads_total", outcome="unloaded")
    loaded = metric("model_loads_total", outcome="loaded")
    for name in ("a-40", "b-40"):
        pool.get(spec(name))
    assert (metric("models_loaded"), metric("model_bytes")) == (2, 80)
    pool.get(spec("a-40"))
    pool.get(spec("c-30"))
    assert pool.loaded(spec("b-40")) is None
    assert pool.loaded(spec("a-40")) is not None
    assert (metric("models_loaded"), metric("model_bytes")) == (2, 70)
    pool.get(spec("d-100"))  # exactly the limit: all others are unloaded
    assert [name for name in ("a-40", "b-40", "c-30") if pool.loaded(spec(name))] == []
    assert (metric("models_loaded"), metric("model_bytes")) == (1, 100)
    with pytest.raises(EncoderUnavailable, match=r"101 bytes.*ANCHORAGE_MODEL_BYTES") as caught:
        pool.get(spec("e-101"))
    assert caught.value.field == "model"
    assert pool.loaded(spec("d-100")) is not None
    assert metric("model_loads_total", outcome="unloaded") == unloaded + 3
    assert metric("model_loads_total", outcome="loaded") == loaded + 4


def test_the_number_of_models_without_memory_is_limited(pool, monkeypatch):
    monkeypatch.setattr(registry, "MAX_MODELS", 3)
    for number in range(5):
        pool.get(spec(f"remote{number}-0"))
    assert [number for number in range(5) if pool.loaded(spec(f"remote{number}-0"))] == [2, 3, 4]


def test_a_model_unloaded_during_use_finishes_its_batch(pool):
    model = pool.get(spec("m-60"))
    model.gate.clear()
    work = pool.submit(model, model.prepare(["1", "2"], InputRole.document), "a")
    pool.get(spec("n-60"))
    assert pool.loaded(spec("m-60")) is None
    earlier = model.prepare(["3"], InputRole.document)  # by a request that already has the model
    late = pool.submit(model, earlier, "a")
    model.gate.set()
    assert torch.equal(result(work), squares([1, 2]))
    assert torch.equal(result(late), squares([3]))
    gone = weakref.ref(model)
    del model, work, late
    pool.close()
    pool.get(spec("o-1"))
    assert gone() is None
