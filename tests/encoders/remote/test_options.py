"""URLs that the operator allows, and their normal form."""

from __future__ import annotations

import pytest

from app.encoders.base import EncoderSpec
from app.encoders.remote.encoder import load as load_encoder
from app.encoders.remote.options import normal_url
from app.errors import EncoderUnavailable, InvalidOption
from tests.encoders.remote.endpoints import DIM, allow_url

ELSEWHERE = [
    ("/base", path) for path in ("", "/base/more", "/base/../base", "/base//x", "/BASE", "/%62ase")
]
ELSEWHERE += [("127.0.0.1", host) for host in ("localhost", "127.1", "169.254.169.254")] + [
    ("http:", "https:")
]


@pytest.mark.parametrize(("part", "other"), ELSEWHERE)
def test_a_url_that_the_operator_does_not_list_is_never_called(endpoint, part, other):
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_REMOTE_URLS") as caught:
        load_encoder(
            EncoderSpec("openai", "truth", None, {"url": endpoint.url.replace(part, other)}),
            allow_url(endpoint.url),
            "cpu",
        )
    assert caught.value.field == "options.url"
    assert endpoint.url not in caught.value.detail
    assert endpoint.connections == 0


NO_URLS = [
    "",
    "ftp://host/v1",
    "file:///etc/passwd",
    "//host/v1",
    "http:/host",
    "http://",
    "http://user:secret@host/v1",
]
NO_URLS += [
    f"http://{rest}"
    for rest in ("user@host/v1", "host /v1", "ho\tst/v1", "host\\@other/v1", "höst/v1", "host/v1\n")
]
NO_URLS += [
    f"http://host{rest}"
    for rest in ("/v1?x=1", "/v1?", "/v1#x", ":0/v1", ":65536/v1", ":٨٠/v1", "/\ud800")
]
NO_URLS += [f"http://host:{'9' * 20}/v1"]


@pytest.mark.parametrize("url", NO_URLS)
def test_an_invalid_url_is_rejected_and_not_quoted(url):
    with pytest.raises(InvalidOption) as caught:
        load_encoder(
            EncoderSpec("openai", "truth", None, {"url": url}), allow_url("http://host/v1"), "cpu"
        )
    assert caught.value.field == "options.url"
    assert "secret" not in caught.value.detail


SAME = {
    "HTTP://Host.Example:80/V1//": "http://host.example/V1",
    "https://host:443": "https://host",
    "https://host:80/": "https://host:80",
    "http://host:0080/a/b": "http://host/a/b",
    "http://[::1]:8080/v1/": "http://[::1]:8080/v1",
}


@pytest.mark.parametrize("url", SAME)
def test_equal_urls_have_one_normal_form(url):
    assert normal_url(url) == normal_url(SAME[url]) == SAME[url]


def test_a_url_may_differ_from_the_operators_in_form(endpoint):
    spec = EncoderSpec("openai", "truth", None, {"url": endpoint.url.replace("http", "HTTP") + "/"})
    assert load_encoder(spec, allow_url(f"{endpoint.url}//"), "cpu").dim == DIM


def test_a_name_of_invalid_unicode_is_rejected(endpoint):
    with pytest.raises(EncoderUnavailable) as caught:
        load_encoder(
            EncoderSpec("openai", "\ud800", None, {"url": endpoint.url}),
            allow_url(endpoint.url),
            "cpu",
        )
    assert (caught.value.field, endpoint.connections) == ("model", 0)
