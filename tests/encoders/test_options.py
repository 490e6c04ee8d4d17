"""Options of encoders of all kinds."""

from __future__ import annotations

import time

import pytest

from app.encoders.options import ImageOptions, RemoteOptions, TextOptions, read_options
from app.errors import InvalidOption, MissingField, UnknownOption

URL = {"url": "http://x"}
WRONG = [
    (TextOptions, {"device": "cuda"}, UnknownOption, "options.device"),
    (TextOptions, URL, UnknownOption, "options.url"),
    (ImageOptions, {"normalize": True}, UnknownOption, "options.normalize"),
    (ImageOptions, {"prompts": {}}, UnknownOption, "options.prompts"),
    (RemoteOptions, {**URL, "headers": {}}, UnknownOption, "options.headers"),
    (RemoteOptions, {"batch": 8}, MissingField, "options.url"),
    *[
        (kind, {**given, name: value}, InvalidOption, f"options.{name}")
        for kind, given in [(TextOptions, {}), (ImageOptions, {}), (RemoteOptions, URL)]
        for name, values in {
            "dim": [0, 10**30, "64"],
            "normalise": [1],
            "dtype": ["int8"],
            "prompts": ["query: "],
            "batch": [0, 2049],
            "timeout_s": [0.5, 301, float("nan")],
            "url": [None],
        }.items()
        for value in values
        if name in kind.model_fields
    ],
    *[
        (kind, {**given, "prompts": prompts}, error, f"options.prompts.{role}")
        for kind, given in [(TextOptions, {}), (RemoteOptions, URL)]
        for role, prompts, error in [
            ("query", {"query": 1}, InvalidOption),
            ("query", {"query": "\ud800"}, InvalidOption),
            ("passage", {"passage": "x"}, UnknownOption),
        ]
    ],
]


@pytest.mark.parametrize(("kind", "given", "error", "field"), WRONG, ids=str)
def test_errors_name_the_wrong_option(kind, given, error, field):
    with pytest.raises(error) as caught:
        read_options(kind, given)
    assert caught.value.field == field


@pytest.mark.parametrize("where", [{}, {"prompts": None}])
def test_a_million_unknown_options_take_less_than_a_second(where):
    many = {f"o{place}": "" for place in range(10**6)}
    given = {"prompts": many} if where else many
    start = time.process_time()
    with pytest.raises(UnknownOption):
        read_options(TextOptions, given)
    assert time.process_time() - start < 1


def test_unset_options_are_not_stored():
    given = {"url": "http://x", "dim": None, "batch": 7}
    assert read_options(RemoteOptions, given).model_dump(exclude_unset=True, exclude_none=True) == {
        "url": "http://x",
        "batch": 7,
    }
    assert read_options(RemoteOptions, given).timeout_s == 30
