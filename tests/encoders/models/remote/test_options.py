"""URLs that the operator allows, and their normal form."""

from __future__ import annotations

import pytest

from app.encoders.models.base import EncoderSpec
from app.encoders.models.remote.encoder import load as load_encoder
from app.encoders.models.remote.encoder import normal_url, read_remote_options
from app.errors import EncoderUnavailable, InvalidOption
from tests.encoders.models.remote.endpoints import DIM, allow_url

LISTED = "http://127.0.0.1:8080/base"
ELSEWHERE = [
    ("/base", path) for path in ("", "/base/more", "/base/../base", "/base//x", "/BASE", "/%62ase")
]
ELSEWHERE += [("127.0.0.1", host) for host in ("localhost", "127.1", "169.254.169.254")]
ELSEWHERE += [("http:", "https:")]


@pytest.mark.parametrize(("part", "other"), ELSEWHERE)
def test_a_url_that_the_operator_does_not_list_is_refused(part, other):
    with pytest.raises(EncoderUnavailable, match="ANCHORAGE_REMOTE_URLS") as caught:
        read_remote_options({"url": LISTED.replace(part, other)}, allow_url(LISTED))
    assert caught.value.field == "options.url"
    assert LISTED not in caught.value.detail


NO_URLS = [
    *("", "ftp://host/v1", "file:///etc/passwd", "//host/v1", "http:/host", "http://"),
    *("http://user:secret@host/v1", "http://user@host/v1", "http://host /v1", "http://ho\tst/v1"),
    *("http://host\\@other/v1", "http://höst/v1", "http://host/v1\n", "http://host/v1?x=1"),
    *("http://host/v1?", "http://host/v1#x", "http://host:0/v1", "http://host:65536/v1"),
    *("http://host:٨٠/v1", f"http://host:{'9' * 20}/v1"),
]


@pytest.mark.parametrize("url", NO_URLS)
def test_an_invalid_url_is_rejected_and_not_quoted(url):
    with pytest.raises(InvalidOption) as caught:
        read_remote_options({"url": url}, allow_url("http://host/v1"))
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
