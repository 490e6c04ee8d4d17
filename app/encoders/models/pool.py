"""The loaded models, the loaders of all kinds of encoders, and the lanes that run the models."""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from weakref import WeakSet

import torch

from app.encoders.models import model_files, text, vision
from app.encoders.models.base import EncoderModel, EncoderSpec, Item, ModelSources
from app.encoders.models.batcher import Batcher, EncodeTask
from app.encoders.models.remote import encoder as remote
from app.errors import AnchorageError, EncoderUnavailable
from app.ops import metrics
from app.ops.devices import is_device_failure
from app.turns import SingleFlight
from app.types import EncoderKind

Loader = Callable[[EncoderSpec, ModelSources, str], EncoderModel]

#: kind -> loader; `external` has none, because its vectors come from the client
LOADERS: dict[str, Loader] = {
    EncoderKind.sentence_transformers: text.load,
    EncoderKind.timm: vision.load,
    EncoderKind.openai: remote.load,
}

#: threads of a lane of a CPU: the products of a small model scale poorly over more
LANE_THREADS = 2
#: lanes of a GPU: one copies and hands out while the other computes
GPU_LANES = 2
#: requests at once to one endpoint
ENDPOINT_LANES = 16

#: tokens of one batch with padding. On a CPU a larger batch is hardly faster, and delays others.
CPU_BATCH_TOKENS = 512
BATCH_TOKENS = 16_384

#: most tokens of one project that wait; for an endpoint, most inputs
MAX_WAITING = 2**18

#: most loaded models; it bounds the remote ones, which take hardly any memory
MAX_MODELS = 1_024


class EncoderPool:
    """A cache of loaded models, which unloads the least recently used first, and their lanes.

    limit_bytes  memory of all loaded models together
    cores        cores for the lanes of a CPU; None: torch's number of threads
    """

    def __init__(
        self,
        sources: ModelSources | None = None,
        *,
        device: str = "cpu",
        limit_bytes: int = 8 * 2**30,
        cores: int | None = None,
    ) -> None:
        self._sources = replace(sources or ModelSources(), largest=limit_bytes)
        self.device = device
        self._limit = limit_bytes
        self._loaded: OrderedDict[str, tuple[EncoderModel, float]] = OrderedDict()
        self._loading = SingleFlight(shared_errors=BaseException)
        self._lock = threading.Lock()
        cores = cores or torch.get_num_threads()
        on_cpu = device == "cpu"
        lanes = max(1, cores // LANE_THREADS) if on_cpu else GPU_LANES
        self._compute = Batcher(
            lanes=lanes,
            threads=max(1, cores // lanes),
            budget=CPU_BATCH_TOKENS if on_cpu else BATCH_TOKENS,
            most=MAX_WAITING,
            device=device,
        )
        #: the lanes of each endpoint: one that is slow or dead delays no other
        self._network: dict[str, Batcher] = {}
        #: the models behind them, also those that are not loaded any more
        self._remote = WeakSet[remote.RemoteEncoder]()

    def get(
        self, spec: EncoderSpec, *, turn: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> EncoderModel:
        """Return the model, and load it if necessary.

        The first caller loads the model inside `turn()`; other callers wait for its result. An
        endpoint's model takes no turn, because it computes nothing here. Raises the loader's
        errors.
        """

        def load() -> EncoderModel:
            found = self.loaded(spec)  # another call may have ended meanwhile
            if found is not None:
                return found
            with nullcontext() if spec.kind == EncoderKind.openai else turn():
                return self._load(spec)

        return self.loaded(spec) or self._loading.run(spec.key, load)

    def loaded(self, spec: EncoderSpec) -> EncoderModel | None:
        """Return the model if it is in memory, else None."""
        with self._lock:
            if spec.key not in self._loaded:
                return None
            self._loaded.move_to_end(spec.key)
            return self._loaded[spec.key][0]

    def hash_folder(self, spec: EncoderSpec) -> str | None:
        """Return the digest of the model's files in the operator's folder now; None without."""
        folder = model_files.find_folder(self._sources.folder, spec.model)
        try:
            return None if folder is None else model_files.hash_folder(folder)
        except OSError:  # loading the model says why
            return None

    def forget(self, spec: EncoderSpec, *, after_s: float = 0.0) -> None:
        """Unload a model that was loaded at least `after_s` ago: its source may have changed."""
        with self._lock:
            if spec.key in self._loaded and time.monotonic() - self._loaded[spec.key][1] >= after_s:
                del self._loaded[spec.key]
                self._update_metrics()

    @property
    def broken(self) -> bool:
        """Whether the device of this process failed, so that only another process can use it."""
        return self._compute.broken

    def check_device(self, error: BaseException) -> None:
        """Remember that the device is broken if this error shows it."""
        if is_device_failure(error):
            self._compute.broken = True

    def submit(
        self, model: EncoderModel, items: Sequence[Item], owner: str, *, is_limited: bool = True
    ) -> EncodeTask:
        """Queue prepared inputs, and return their task. Raises TooMuchAtOnce for a limited one."""
        lanes = self._compute if model.endpoint is None else self._lanes_of(model.endpoint)
        return lanes.submit(model, items, owner, is_limited=is_limited)

    def lane_without_thread(self, model: remote.RemoteEncoder) -> AbstractContextManager[bool]:
        """As `Batcher.lane_without_thread`, of the lanes of the model's endpoint."""
        return self._lanes_of(model.endpoint).lane_without_thread()

    def _lanes_of(self, endpoint: str) -> Batcher:
        with self._lock:
            if endpoint not in self._network:
                self._network[endpoint] = Batcher(
                    lanes=ENDPOINT_LANES, threads=None, budget=BATCH_TOKENS, most=MAX_WAITING
                )
            return self._network[endpoint]

    def close(self) -> None:
        for lanes in (self._compute, *self._network.values()):
            lanes.close()
        for model in list(self._remote):
            model.close()

    def _load(self, spec: EncoderSpec) -> EncoderModel:
        """Raises EncoderUnavailable, and InvalidOption for an option that the model has not."""
        try:
            model = LOADERS[spec.kind](spec, self._sources, self.device)
            self._add(spec.key, model)
        except Exception as error:  # the libraries may raise anything for a broken model
            metrics.MODEL_LOADS.labels("refused").inc()
            self.check_device(error)
            if isinstance(error, AnchorageError):
                raise
            if isinstance(error, ModuleNotFoundError):
                raise EncoderUnavailable(
                    f"The server lacks the package {error.name!r}. Ask the operator to run: pip "
                    "install 'anchorage-server[text,vision]'.",
                    field="kind",
                ) from error
            raise EncoderUnavailable(
                f"Model {spec.model!r} cannot be loaded ({type(error).__name__}). "
                "The server's log has the reason.",
                field="model",
            ) from error
        metrics.MODEL_LOADS.labels("loaded").inc()
        if model.nbytes:
            _freeze_objects()
        return model

    def _add(self, key: str, model: EncoderModel) -> None:
        """Raises EncoderUnavailable for a model that is larger than the limit of all models."""
        if model.nbytes > self._limit:
            raise EncoderUnavailable(
                f"This model takes {model.nbytes} bytes; the limit is {self._limit}. "
                "Ask the operator to raise ANCHORAGE_MODEL_BYTES.",
                field="model",
            )
        with self._lock:
            if isinstance(model, remote.RemoteEncoder):
                self._remote.add(model)
            self._loaded[key] = model, time.monotonic()
            while self._bytes() > self._limit or len(self._loaded) > MAX_MODELS:
                self._loaded.popitem(last=False)
                metrics.MODEL_LOADS.labels("unloaded").inc()
            self._update_metrics()

    def _bytes(self) -> int:
        return sum(model.nbytes for model, _ in self._loaded.values())

    def _update_metrics(self) -> None:
        metrics.MODELS.set(len(self._loaded))
        metrics.MODEL_BYTES.set(self._bytes())


def _freeze_objects() -> None:
    """Exclude all present objects from garbage collection, after one full collection.

    Models and their libraries have about a million objects, which every collection would visit.
    Unloaded models contain reference cycles, which the full collection frees.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
