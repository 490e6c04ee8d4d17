"""Errors of bodies that do not arrive, parse, or have a format that the route reads."""

from __future__ import annotations

from app.errors.root import AnchorageError


class BodyTooSlow(AnchorageError):
    code = "body-too-slow"


class UnsupportedMedia(AnchorageError):
    code = "unsupported-media-type"


class NotAcceptable(AnchorageError):
    code = "not-acceptable"


class Malformed(AnchorageError):
    code = "malformed-json"


class BadNpy(Malformed):
    code = "bad-npy"


class BadArrow(Malformed):
    code = "bad-arrow"


class MalformedParts(Malformed):
    code = "malformed-parts"
