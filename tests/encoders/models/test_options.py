"""Options of encoders of all kinds."""

from __future__ import annotations

import time

import pytest

from app.encoders.models.options import ImageOptions, RemoteOptions, TextOptions, read_options
from app.errors import InvalidOption, MissingField, UnknownOption

URL = {"url": "http://x"}
WRONG = [
    (TextOptions, {"device": "cuda"}, UnknownOption, "options.device"),
    (ImageOptions, {"prompts": {}}, UnknownOption, "options.prompts"),
    (RemoteOptions, {**URL, "headers": {}}, UnknownOption, "options.headers"),
    (RemoteOptions, {"batch": 8}, MissingField, "options.url"),
    (TextOptions, {"dim": 10**30}, InvalidOption, "options.dim"),
    (ImageOptions, {"dim": "64"}, InvalidOption, "options.dim"),
    (TextOptions, {"normalise": 1}, InvalidOption, "options.normalise"),
    (ImageOptions, {"dtype": "int8"}, InvalidOption, "options.dtype"),
    (RemoteOptions, {**URL, "batch": 2049}, InvalidOption, "options.batch"),
    (RemoteOptions, {**URL, "timeout_s": float("nan")}, InvalidOption, "options.timeout_s"),
    (TextOptions, {"prompts": {"query": "\ud800"}}, InvalidOption, "options.prompts.query"),
    (TextOptions, {"prompts": {"passage": "x"}}, UnknownOption, "options.prompts.passage"),
]


@pytest.mark.parametrize(("kind", "given", "error", "field"), WRONG, ids=str)
def test_errors_name_the_wrong_option(kind, given, error, field):
    with pytest.raises(error) as caught:
        read_options(kind, given)
    assert caught.value.field == field


def test_a_million_unknown_options_take_less_than_a_second():
    given = {"prompts": {f"o{place}": "" for place in range(10**6)}}
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
