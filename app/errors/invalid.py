"""Errors of values that are wrong: each names its field, and the rows if it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.errors.root import AnchorageError


class Invalid(AnchorageError):
    code = "invalid"


class InvalidRequest(Invalid):
    code = "invalid-request"


class MissingField(Invalid):
    code = "missing-field"


class UnequalAnchors(Invalid):
    code = "unequal-anchors"


class DimensionMismatch(Invalid):
    code = "dimension-mismatch"


class RaggedRows(Invalid):
    code = "ragged-rows"


class NonFinite(Invalid):
    code = "non-finite"


class OutOfRange(Invalid):
    code = "value-out-of-range"


class BadShape(Invalid):
    code = "bad-shape"


class BadDtype(Invalid):
    code = "bad-dtype"


class BadBase64(Invalid):
    code = "bad-base64"


class BadColumn(Invalid):
    code = "bad-column"


class EmptyVectors(Invalid):
    code = "empty-vectors"


class DegenerateAnchors(Invalid):
    code = "degenerate-anchors"


class SeedsInsufficient(Invalid):
    code = "seeds-insufficient"


class SpacesNotAligned(Invalid):
    code = "spaces-not-aligned"


class InvalidOption(Invalid):
    code = "invalid-option"


class UnknownOption(Invalid):
    code = "unknown-option"


class NotExactlyOne(Invalid):
    code = "not-exactly-one"


class AddressNotListed(Invalid):
    code = "address-not-listed"


class ConnectorMissing(Invalid):
    code = "connector-missing"


class StoreUnsupported(Invalid):
    code = "store-unsupported"


class InvalidFilter(Invalid):
    code = "invalid-filter"


class WrongSpace(Invalid):
    code = "wrong-space"


class MethodNotIndependent(Invalid):
    code = "method-not-independent"


class EncoderNeedsVectors(Invalid):
    code = "encoder-needs-vectors"


class EncoderUnavailable(Invalid):
    code = "encoder-unavailable"


class InvalidInput(Invalid):
    code = "invalid-input"


class TokensNotRead(Invalid):
    code = "tokens-not-read"


class InvalidImage(Invalid):
    code = "invalid-image"


class InvalidHead(Invalid):
    code = "invalid-head"


class InvalidSeeds(Invalid):
    code = "invalid-seeds"


class QualityBelowMinimum(Invalid):
    """The translator promises less than the request or the contract asks for.

    found  what it promises; None: there are too few anchors to promise anything
    """

    code = "quality-below-minimum"

    def __init__(
        self, detail: str, *, field: str | None = None, found: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(detail, field=field, more={"found": found})


class IdempotencyKeyReused(Invalid):
    code = "idempotency-key-reused"
