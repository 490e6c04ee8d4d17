"""Which loader serves which kind, the models loaded so far, and the lanes that run them."""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace

import torch

from app.encoders import remote, text, vision
from app.encoders.base import EncoderModel, Item, Shelf, Spec
from app.encoders.batcher import Batcher, Work
from app.errors import AnchorageError, EncoderNeedsVectors, EncoderUnavailable
from app.observability import metrics
from app.types import EncoderKind

#: kind -> loader; `external` has none, for its vectors come from the client
LOADERS: dict[str, Callable[[Spec, Shelf, str], EncoderModel]] = {
    EncoderKind.sentence_transformers: text.load,
    EncoderKind.timm: vision.load,
    EncoderKind.openai: remote.load,
}

#: batches at once on a CPU; more cores give each lane more threads
MOST_LANES = 8
#: requests at once to endpoints elsewhere
REMOTE_LANES = 8

#: tokens of one batch, padding included: a CPU gains little beyond, and others would wait
CPU_BUDGET = 512
BUDGET = 16_384

#: an endpoint is asked anew after so long what its model is: it may have been replaced
REMOTE_FRESH_S = 300

#: requests at once to one endpoint's model, so that a slow one leaves lanes for the others
REMOTE_LANES_EACH = 3

#: tokens that may wait
MOST_WAITING = 2**19

#: models in memory; those that other machines run take none to speak of, and yet are not kept without end
MOST_MODELS = 1_024


class EncoderPool:
    """Loaded models, the least recently used unloaded first, and the lanes that run them.

    limit_bytes  of all loaded models together
    cores        for the lanes of a CPU; None: as many as torch has threads
    """

    def __init__(
        self,
        shelf: Shelf | None = None,
        *,
        device: str = "cpu",
        limit_bytes: int = 8 * 2**30,
        cores: int | None = None,
    ) -> None:
        self._shelf = replace(shelf or Shelf(), largest=limit_bytes)
        self._device = device
        self._limit = limit_bytes
        self._loaded: OrderedDict[str, tuple[EncoderModel, float]] = OrderedDict()
        self._loading: dict[str, Future[EncoderModel]] = {}
        self._lock = threading.Lock()
        cores = cores or torch.get_num_threads()
        on_cpu = device == "cpu"
        lanes = min(cores, MOST_LANES) if on_cpu else 1
        self._compute = Batcher(
            lanes=lanes,
            threads=max(1, cores // lanes),
            budget=CPU_BUDGET if on_cpu else BUDGET,
            most=MOST_WAITING,
        )
        self._network = Batcher(
            lanes=REMOTE_LANES,
            each=REMOTE_LANES_EACH,
            threads=None,
            budget=BUDGET,
            most=MOST_WAITING,
        )

    def get(
        self, spec: Spec, *, turn: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> EncoderModel:
        """The loaded model; whoever loads it takes a `turn`, others wait for the result.

        Raises EncoderNeedsVectors for kinds without a loader, and the loader's errors.
        """
        loader = LOADERS.get(spec.kind)
        if loader is None:
            raise EncoderNeedsVectors(
                f"an encoder of kind {spec.kind!r} cannot encode inputs: send vectors, made by it",
                field="inputs",
            )
        with self._lock:
            if (found := self._find(spec.key)) is not None:
                return found
            others, own = self._loading.get(spec.key), Future[EncoderModel]()
            if others is None:
                self._loading[spec.key] = own
        if others is not None:
            return _awaited(others)
        try:
            with turn():
                own.set_result(self._load(loader, spec))
        except BaseException as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loading[spec.key]
        return own.result()

    def loaded(self, spec: Spec) -> EncoderModel | None:
        """The model if it is in memory."""
        with self._lock:
            return self._find(spec.key)

    def forget(self, spec: Spec, *, after_s: float = 0.0) -> None:
        """Unload a model that was loaded so long ago: what it was made of has changed, or may have."""
        with self._lock:
            if spec.key in self._loaded and time.monotonic() - self._loaded[spec.key][1] >= after_s:
                del self._loaded[spec.key]
                self._show()

    def submit(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, patient: bool = False
    ) -> Work:
        """Queue prepared inputs for a lane. Raises Overloaded and TooMuchAtOnce."""
        lanes = self._network if model.remote else self._compute
        return lanes.submit(model, items, owner, patient=patient)

    def close(self) -> None:
        self._compute.close()
        self._network.close()

    def _find(self, key: str) -> EncoderModel | None:
        if key not in self._loaded:
            return None
        model, loaded_at = self._loaded[key]
        if model.remote and time.monotonic() - loaded_at > REMOTE_FRESH_S:
            del self._loaded[key]
            return None
        self._loaded.move_to_end(key)
        return model

    def _load(self, loader: Callable[[Spec, Shelf, str], EncoderModel], spec: Spec) -> EncoderModel:
        try:
            model = loader(spec, self._shelf, self._device)
            self._keep(spec.key, model)
        except AnchorageError:
            metrics.MODEL_LOADS.labels("refused").inc()
            raise
        metrics.MODEL_LOADS.labels("loaded").inc()
        if model.nbytes:
            _freeze()
        return model

    def _keep(self, key: str, model: EncoderModel) -> None:
        """Raises EncoderUnavailable for a model above the limit by itself."""
        if model.nbytes > self._limit:
            raise EncoderUnavailable(
                f"this model takes {model.nbytes} bytes, and the server keeps {self._limit} of models: see ANCHORAGE_MODEL_BYTES",
                field="model",
            )
        with self._lock:
            self._loaded[key] = model, time.monotonic()
            while self._bytes() > self._limit or len(self._loaded) > MOST_MODELS:
                self._loaded.popitem(last=False)
                metrics.MODEL_LOADS.labels("unloaded").inc()
            self._show()

    def _bytes(self) -> int:
        return sum(model.nbytes for model, _ in self._loaded.values())

    def _show(self) -> None:
        metrics.MODELS.set(len(self._loaded))
        metrics.MODEL_BYTES.set(self._bytes())


def _awaited(loading: Future[EncoderModel]) -> EncoderModel:
    """What another request loads. Raises what that one does, each request its own copy: it will name its field."""
    try:
        return loading.result()
    except AnchorageError as error:
        raise copy(error) from error


def _freeze() -> None:
    """Models and their libraries are a million objects, which every collection would look through again. Those that were unloaded
    since go now: they hold themselves in circles.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
