"""sentence-transformers models: vectors equal to the library's, options, identity, and files."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from app.errors import EncoderUnavailable, InvalidInput, InvalidOption
from app.types import InputRole
from tests.encoders.models.sentence_models import (
    PACKAGED,
    by_library,
    encode,
    load,
    sentence_transformers,
    st_modules,
    static,
    tiny,
)

is_close = partial(torch.testing.assert_close, atol=1e-5, rtol=0)


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

STRANGE = ["I lost my card.", "What is the exchange rate?", "", " ", "\n\t  \n", "\x00", "\u202e"]
STRANGE += ["🦊" * 1000, "日本語のテキスト", "A\u0301 \u00c1 \u00e1", "ﬁne ½ Ⅻ", "x" * 5000]
STRANGE += ["[CLS] [SEP] [PAD] [MASK] [UNK]", "UPPER \u200b zero"]
STRANGE += ["word " * count for count in (254, 255, 3000)]


def test_vectors_equal_the_librarys(minilm, library):
    vectors = encode(minilm, STRANGE)
    is_close(vectors, library.encode(STRANGE, convert_to_tensor=True, batch_size=4))
    assert (vectors.dtype, minilm.dim) == (torch.float32, 384)


def test_tokens_are_counted_and_truncated_texts_are_named(minilm, library):
    limit = library.max_seq_length
    whole = [
        len(ids) for ids in library.tokenizer(STRANGE, truncation=False, verbose=False)["input_ids"]
    ]
    items = minilm.prepare(STRANGE, InputRole.document)
    assert [item.tokens for item in items] == [min(count, limit) for count in whole]
    assert [item.truncated for item in items] == [count > limit for count in whole]
    assert {limit, limit + 1} <= set(whole)  # lengths on both sides of the limit
    assert [item.length for item in items] == [item.tokens for item in items]


def test_threads_may_share_a_model(tmp_path):
    model = load("tiny", tiny(tmp_path))
    texts = [f"hello number {n} of the world" for n in range(6)]
    expected = encode(model, texts)
    with ThreadPoolExecutor(8) as pool:
        for vectors in pool.map(lambda _: encode(model, texts), range(24)):
            is_close(vectors, expected)


@pytest.mark.parametrize("wrong", ["\ud800", "fine until \udfff", b"\x89PNG"])
def test_images_and_invalid_unicode_are_rejected_by_row(minilm, wrong):
    with pytest.raises(InvalidInput) as caught:
        minilm.prepare(["x", wrong, "y", wrong], InputRole.document)
    assert (caught.value.field, caught.value.rows) == ("inputs", [1, 3])


def test_texts_without_tokens_are_rejected_by_row(tmp_path):
    with pytest.raises(InvalidInput, match="no tokens") as caught:
        load("tiny", tiny(tmp_path)).prepare(["hello", "", "  \n"], InputRole.document)
    assert caught.value.rows == [1, 2]


HELLOS = ["hello", "hello world of the number", "a b c", "the world hold . " * 3]


@pytest.mark.parametrize(
    ("kind", "side", "pooling"),
    [("bert", "right", "cls"), ("qwen", "left", "lasttoken"), ("gpt2", "left", "mean")],
)
def test_vectors_do_not_depend_on_the_padding_side(tmp_path, kind, side, pooling):
    model = load("tiny", tiny(tmp_path, kind, side=side, pooling=pooling))
    assert model.identity.pooling == pooling
    is_close(encode(model, HELLOS), by_library(tmp_path / "tiny", HELLOS))


def test_a_model_without_a_pad_token_is_refused(tmp_path):
    with pytest.raises(EncoderUnavailable) as caught:
        load("tiny", tiny(tmp_path, "gpt2", pad=None))
    assert caught.value.field == "model"


def test_a_static_embedding_and_inputs_of_two_roles_in_one_batch(tmp_path):
    folder = static(tmp_path) / "static"
    model = load("static", tmp_path, prompts={"query": "query: "})
    assert (model.dim, model.identity.pooling, model.counts_tokens) == (8, None, True)
    assert model.identity.prompts == {"query": "query: "}
    items = model.prepare(HELLOS, InputRole.query) + model.prepare(HELLOS, InputRole.document)
    queries = by_library(folder, HELLOS, prompt="query: ")
    expected = torch.cat([queries, by_library(folder, HELLOS)])
    is_close(model.run(items, lambda: False), expected)


# Options


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
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
        theirs = by_library(tmp_path / "tiny", HELLOS, prompt=expected.get(role, ""))
        is_close(encode(model, HELLOS, role), theirs)
    plain = load("tiny", tmp_path, prompts={"query": "", "document": ""})
    assert plain.identity.prompts == {}
    is_close(encode(plain, HELLOS), by_library(tmp_path / "tiny", HELLOS, prompt=""))


def test_vectors_are_shortened_before_they_are_normalised(tmp_path):
    tiny(tmp_path)
    plain, unit = load("tiny", tmp_path), load("tiny", tmp_path, normalise=True)
    assert (plain.identity.normalise, unit.identity.normalise) == (False, True)
    raw = encode(plain, HELLOS)
    assert not torch.allclose(raw.norm(dim=1), torch.ones(4), atol=0.1)
    is_close(encode(unit, HELLOS), normalize(raw))
    is_close(encode(load("tiny", tmp_path, dim=5), HELLOS), raw[:, :5])
    both = load("tiny", tmp_path, dim=5, normalise=True)
    assert (both.dim, both.identity.dim, both.identity.normalise) == (5, 5, True)
    is_close(encode(both, HELLOS), normalize(raw[:, :5]))


@pytest.mark.parametrize(("name", "dim"), [("static", 8), ("tiny", 4)])
def test_half_precision_reaches_every_module(tmp_path, name, dim):
    static(tmp_path) if name == "static" else tiny(tmp_path, more=[st_modules.Dense(16, 4)])
    model, full = load(name, tmp_path, dtype="bfloat16"), load(name, tmp_path)
    assert (model.dim, model.identity.dtype) == (dim, "bfloat16")
    assert name != "static" or model.nbytes == full.nbytes // 2
    is_close(encode(model, HELLOS), encode(full, HELLOS), atol=0.05)


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 385), ("normalise", False)]
)  # a model that ends with a Normalize module
def test_errors_name_options_that_the_model_does_not_support(name, value):
    with pytest.raises(InvalidOption) as caught:
        load(**{name: value})
    assert caught.value.field == f"options.{name}"


# Files


def test_an_operators_folder_has_priority_over_a_package(tmp_path, minilm):
    tiny(tmp_path)
    (tmp_path / "tiny").rename(tmp_path / "all-MiniLM-L6-v2")
    assert (minilm.dim, load("all-MiniLM-L6-v2", tmp_path).dim) == (384, 16)


def refusal(folder, name="mine"):
    with pytest.raises(EncoderUnavailable) as caught:
        load(name, folder)
    assert caught.value.field == "model"
    assert str(folder) not in caught.value.detail
    return caught.value.detail


@pytest.mark.parametrize("content", [{}, {"config.json": "garbage"}, {"modules.json": "[]"}])
def test_a_folder_without_a_valid_model_is_rejected(tmp_path, content):
    (tmp_path / "mine").mkdir()
    for name, value in content.items():
        (tmp_path / "mine" / name).write_text(value)
    refusal(tmp_path)


def test_no_module_of_a_model_is_unpickled(tmp_path):
    tiny(tmp_path, more=[st_modules.Dense(16, 4)])
    folder, sprung = tmp_path / "tiny" / "2_Dense", tmp_path / "sprung"
    trap = f"cposix\nsystem\n(Vtouch {sprung}\ntR.".encode()
    names = ["pytorch_model.bin", "weights.PT", "a.pth", "a.pkl", "a.ckpt"]
    for name in names:
        (folder / name).write_bytes(trap)
    assert load("tiny", tmp_path).dim == 4  # it reads the safetensors file
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    while names:
        detail = refusal(tmp_path, "tiny")
        assert "pickled" in detail
        refused = next(each for each in names if f"2_Dense/{each}" in detail)
        names.remove(refused)
        (folder / refused).unlink()
    assert not sprung.exists()


def test_code_in_a_models_folder_never_runs(tmp_path):
    folder, sprung = tmp_path / "mine", tmp_path / "sprung"
    folder.mkdir()
    own = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own.Model"}]
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "own.py").write_text(
        f"open({str(sprung)!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    refusal(tmp_path)
    assert not sprung.exists()
