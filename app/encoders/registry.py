"""Which loader serves which kind, and the models loaded so far."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from app.encoders import text
from app.encoders.base import EncoderModel
from app.errors import EncoderNeedsVectors
from app.types import EncoderKind

#: kind -> loader; `external` has none, for its vectors come from the client
LOADERS: dict[str, Callable[..., EncoderModel]] = {
    EncoderKind.sentence_transformers: text.load,
}


class EncoderPool:
    """At most `limit` loaded models, the least recently used unloaded first."""

    def __init__(self, *, models_dir: Path | None = None, allow_hub: bool = False, limit: int = 4) -> None:
        self._models_dir = models_dir
        self._allow_hub = allow_hub
        self._limit = limit
        self._loaded: OrderedDict[tuple[str, str, str | None], EncoderModel] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, kind: str, model: str | None, revision: str | None) -> EncoderModel:
        """The loaded model. Raises EncoderNeedsVectors for kinds without a loader, EncoderUnavailable as the loader."""
        loader = LOADERS.get(kind)
        if loader is None or model is None:
            raise EncoderNeedsVectors(
                f"an encoder of kind {kind!r} cannot encode inputs: send vectors, made by it", field="inputs"
            )
        key = (kind, model, revision)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = loader(model, revision, models_dir=self._models_dir, allow_hub=self._allow_hub)
                if len(self._loaded) > self._limit:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(key)
            return self._loaded[key]
