"""Ids of translators, from what they do and how they were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

from app.maths.translators.translator import Translator, content_hash
from app.storage import tables


def public_id(translator: Translator, row: tables.TranslatorRow) -> str:
    """A hash of content and fit: equal matrices of two methods have two reports."""
    text = f"{content_hash(translator)} {row.method} {canonical_json(row.options)!r}"
    if row.weights is not None:
        text += f" None {row.weights}"
    return "tr_" + sha256(text.encode()).hexdigest()[:32]


def canonical_json(options: Mapping[str, Any]) -> bytes:
    """Return the options as JSON with sorted keys, so that equal options give equal bytes."""
    return orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS)
