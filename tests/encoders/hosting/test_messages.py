"""Messages between API processes and model hosts."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.encoders.base import EncoderSpec, Item
from app.encoders.hosting import messages
from app.errors import EncoderFailed, EncoderUnavailable, ModelsUnavailable

TOKENS = st.lists(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=7
)


def round_trip(items):
    header, payload = messages.pack_items(items)
    return messages.unpack_items(header, memoryview(bytearray(payload)))


@given(TOKENS, st.integers(1, 3))
def test_tokens_of_any_lengths_arrive_as_they_were(rows, names):
    items = [
        Item(
            {f"input {n}": [token // (n + 1) for token in row] for n in range(names)},
            len(row),
            5,
            9,
        )
        for row in rows
    ]
    arrived = round_trip(items)
    assert [(each.length, each.cost) for each in arrived] == [(len(row), 5) for row in rows]
    for sent, got in zip(items, arrived, strict=True):
        assert {name: list(each) for name, each in got.features.items()} == sent.features


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_texts_arrive_as_they_were(texts):
    arrived = round_trip([Item(each, 3, 4, 5) for each in texts])
    assert [each.features for each in arrived] == texts


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pixels_of_different_shapes_arrive_as_they_were(dtype):
    shapes = [(3, 4, 5), (1, 2, 2), (3, 1, 7)]
    images = [(torch.rand(shape) * 255).to(dtype) for shape in shapes]
    arrived = round_trip([Item(image, 1, 1, 0) for image in images])
    assert all(
        got.features.dtype == dtype and torch.equal(got.features, sent)
        for got, sent in zip(arrived, images, strict=True)
    )


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (5, 3)])
def test_vectors_arrive_as_they_were(shape):
    vectors = torch.randn(shape)
    header, payload = messages.pack_vectors(vectors)
    assert torch.equal(messages.unpack_vectors(header, memoryview(bytearray(payload))), vectors)


def test_a_specification_arrives_with_the_same_key():
    spec = EncoderSpec("timm", "a/b", "main", {"dim": 3, "prompts": {"query": "q: "}})
    assert messages.unpack_spec(messages.pack_spec(spec)).key == spec.key


@pytest.mark.parametrize("kind", [EncoderUnavailable, EncoderFailed, ModelsUnavailable])
def test_an_error_arrives_with_its_class_and_members(kind):
    error = kind("No model.", field="model", rows=[1, 2], limit=7)
    got = messages.unpack_error(messages.pack_error(error))
    assert type(got) is kind
    assert (got.detail, got.retry_after_s) == (error.detail, error.retry_after_s)
    assert got.members() == error.members()


def greet_both(host_key: bytes, client_key: bytes) -> list[BaseException | None]:
    results: list[BaseException | None] = [None, None]
    sockets = socket.socketpair()

    def greet(side: int, key: bytes) -> None:
        try:
            messages.greet(sockets[side], key, server=side == 0)
        except (OSError, EOFError) as error:
            results[side] = error
        finally:
            if results[side] is not None:
                sockets[side].close()

    threads = [
        threading.Thread(target=greet, args=each) for each in enumerate([host_key, client_key])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in sockets:
        each.close()
    return results


def test_both_sides_must_know_the_key():
    assert greet_both(b"one key", b"one key") == [None, None]
    assert all(isinstance(each, PermissionError) for each in greet_both(b"one key", b"another"))


def test_an_echo_of_the_hosts_own_messages_is_no_proof():
    """The two sides prove different texts, so that a host's answer cannot be sent back to it."""
    ours, theirs = socket.socketpair()
    failed: list[BaseException] = []

    def host() -> None:
        try:
            messages.greet(ours, b"key", server=True)
        except PermissionError as error:
            failed.append(error)

    thread = threading.Thread(target=host)
    thread.start()
    with ours, theirs:
        for _ in range(2):
            header, _ = messages.receive(theirs)
            messages.send(theirs, header)
        thread.join()
    assert failed


def test_unpacked_tokens_are_small_integers_of_numpy():
    [item] = round_trip([Item({"input_ids": [7, 8]}, 2, 2, 2)])
    assert item.features["input_ids"].dtype == np.int32
