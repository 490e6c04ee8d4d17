"""Keeps URLs of stores, which may hold passwords, out of texts, errors and traces."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

#: parts of the names of a URL's parameters whose values are secret
SECRET_PARTS = ("pass", "pwd", "key", "token", "secret", "sig", "cred", "auth", "user", "host")

#: shorter secrets also stand in other words, and remain
SHORTEST_SECRET = 4

_PAIR = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)")


class ConnectorFault(Exception):
    """A fault of the service in a call of a store. Its text is the first trace, without the URL."""


def hide_url(text: str, url: str) -> str:
    """Return a text without the URL of a store, its user, its secrets, and its host or path."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def fault_without_url(error: BaseException, url: str) -> ConnectorFault:
    """Return a fault whose text is the trace of an error: the error itself may hold the URL."""
    return ConnectorFault(f"\n{hide_url(''.join(traceback.format_exception(error)), url)}")


def digest_of(url: str) -> str:
    """Return the end of the name that `anchorage migrate` gives an address, whatever lists it."""
    return hashlib.sha256(without_password(url).encode()).hexdigest()[:8]


def without_password(address: str) -> str:
    """Return an address with PASSWORD in the place of its password."""
    found = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:PASSWORD@", address)
    found = re.sub(r"^(https?://)[^/@:]+@", r"\1PASSWORD@", found)  # a key without a user
    return re.sub(r"((?:password|api_key)=)[^&\"]*", r"\1PASSWORD", found)


def _secrets(url: str) -> set[str]:
    secrets = {url, url.rstrip("/")}
    if "://" not in url and _PAIR.match(url.lstrip()):  # a DSN as `host=... password=...`
        secrets |= set(_of_pairs(_PAIR.findall(url)))
        return secrets
    with suppress(ValueError):
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
        secrets |= {parts.netloc, hosts, parts.hostname or "", parts.username or ""}
        secrets |= {each.rpartition(":")[0] for each in hosts.split(",")}
        secrets |= {unquote(parts.username or ""), parts.password or ""}
        secrets |= {unquote(parts.password or ""), "" if parts.netloc else parts.path.rstrip("/")}
        secrets |= set(_of_pairs(parse_qsl(parts.query)))
        secrets |= set(_of_pairs(_PAIR.findall(parts.query)))
    return secrets


def _of_pairs(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Return the secret values of names and values."""
    for name, value in pairs:
        if any(part in name.lower() for part in SECRET_PARTS):
            yield value
            bare = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith("'") else value
            yield bare
            yield unquote(bare)
            yield from bare.split(",")
