"""The options of a remote encoder, checked against the URLs that the operator allows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.encoders.models.base import ModelSources
from app.encoders.models.options import RemoteOptions
from app.errors import EncoderUnavailable, InvalidOption

_URL = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
    r"((?:/[\w.~!$&'()*+,;=:@%-]*)*)",
    re.A | re.I,
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normal_url(url: str) -> str:
    """Return scheme://host[:port]/path: lower-case up to the path, without a default port or a
    trailing slash.

    Raises ValueError for another scheme, user information, a query, a fragment or white space.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(
            "must have the form http(s)://host[:port]/path, without user, query and fragment"
        )
    scheme, host, port, path = match[1].lower(), match[2].lower(), match[3], match[4].rstrip("/")
    if port is not None and not 1 <= int(port) <= 65_535:
        raise ValueError("must have a port from 1 to 65535")
    suffix = "" if port is None or int(port) == _DEFAULT_PORTS[scheme] else f":{int(port)}"
    return f"{scheme}://{host}{suffix}{path}"


def read_remote_options(
    options: Mapping[str, Any], sources: ModelSources
) -> tuple[RemoteOptions, str | None]:
    """Return the options with the URL in the operator's form, and the variable of its key.

    Raises InvalidOption for an invalid URL, and EncoderUnavailable for one that is not allowed.
    """
    checked = RemoteOptions.model_validate(dict(options))
    try:
        url = normal_url(checked.url)
    except ValueError as error:
        raise InvalidOption(f"The endpoint's base URL {error}.", field="options.url") from None
    key_variables = {normal_url(allowed): key_env for allowed, key_env in sources.remote.items()}
    if url not in key_variables:
        raise EncoderUnavailable(
            "This server may not call that URL. "
            "Ask the operator to add it to ANCHORAGE_REMOTE_URLS, or use a URL listed there.",
            field="options.url",
        )
    return checked.model_copy(update={"url": url}), key_variables[url]
