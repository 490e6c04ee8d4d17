"""How an answer describes native scores."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app.search.native import NativeCounts


class NativeOut(BaseModel):
    """Texts of the candidates for native scores."""

    embedded: int = Field(description="Texts that were embedded for this request.")
    truncated: int = Field(
        description="Embedded texts that the encoder read only in part, because they are longer "
        "than it reads. A template in `text_field` cuts texts."
    )
    cached: int = Field(description="Texts whose vectors were stored.")
    missing: int = Field(
        description="Candidates without a native vector: they have no text, or the encoder refused "
        "it, or the deadline or the budget was over."
    )


def native_members(counts: NativeCounts) -> dict[str, int]:
    """Return the JSON of the counts of native vectors."""
    return {
        "embedded": counts.embedded,
        "truncated": counts.truncated,
        "cached": counts.cached,
        "missing": counts.missing,
    }
