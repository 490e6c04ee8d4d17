"""Options of encoders of all kinds."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from app.encoders.models.options import ImageOptions, RemoteOptions, TextOptions

URL = {"url": "http://x"}
WRONG = [
    (TextOptions, {"device": "cuda"}, ("device",)),
    (ImageOptions, {"prompts": {}}, ("prompts",)),
    (RemoteOptions, {"batch": 8}, ("url",)),
    (TextOptions, {"dim": 10**30}, ("dim",)),
    (ImageOptions, {"dim": "64"}, ("dim",)),
    (TextOptions, {"normalise": 1}, ("normalise",)),
    (ImageOptions, {"dtype": "int8"}, ("dtype",)),
    (RemoteOptions, {**URL, "batch": 2049}, ("batch",)),
    (RemoteOptions, {**URL, "timeout_s": float("nan")}, ("timeout_s",)),
    (TextOptions, {"prompts": {"query": "\ud800"}}, ("prompts", "query")),
    (TextOptions, {"prompts": {"passage": "x"}}, ("prompts", "passage", "[key]")),
]


@pytest.mark.parametrize(("kind", "options", "place"), WRONG, ids=str)
def test_errors_name_the_wrong_option(kind, options, place):
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(options)
    assert caught.value.errors()[0]["loc"] == place


def test_a_million_unknown_options_take_less_than_a_second():
    options = {"prompts": {f"o{place}": "" for place in range(10**6)}}
    start = time.process_time()
    with pytest.raises(ValidationError):
        TextOptions.model_validate(options)
    assert time.process_time() - start < 1
