"""The candidates of `auto`, its defaults, and the decoder options that match an encoding."""

from __future__ import annotations

from typing import Literal, NamedTuple

from app.maths.translators.methods import Options

Preference = Literal["retrieval", "cosine", "classification"]


#: The sum of the two powers of a good graded translator: (0, 1), (1/2, 3/4) and (1, 1/4) are each
#: near the best of their row.
TOTAL_POWER = 1.25


class Candidate(NamedTuple):
    """A method and its options; the other options have their defaults."""

    method: str
    options: Options


def _candidates() -> tuple[Candidate, ...]:
    """Candidates by rising number of parameters: each space alone; a rotation; a matrix; a rotation
    between whitened spaces.
    """
    ridges = (None, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    return (
        *(
            Candidate("graded", {"decode_power": power, "ridge": ridge})
            for ridge in ridges
            for power in (0.0, 0.125, 0.25, 0.375, 0.5)
        ),
        Candidate("procrustes", {}),
        *(Candidate("toward-procrustes", {"ridge": ridge}) for ridge in (1.0, 3.0, 100.0)),
        *(
            Candidate("canonical", {"correlation_power": c, "dewhiten": w})
            for c in (0.0, 0.5)
            for w in (0.5, 1.0)
        ),
    )


#: Not included: `irp` and `irp-ridge`, which would not have been chosen on any pair of
#: benchmarks/quality; `ridge`, which is graded at (1, 0).
LINEAR_CANDIDATES = _candidates()

#: Powers of the map that is not linear. The comparison, whose index is small, would prefer lower
#: ones for retrieval than a larger index does.
KERNEL_POWERS: dict[Preference, tuple[float, ...]] = {
    "retrieval": (0.125, 0.25),
    "cosine": (0.0,),
    "classification": (0.125, 0.25),
}

#: Chosen unless another candidate is clearly better, and where the anchors are too few to hold any
#: out.
DEFAULT_CANDIDATE: dict[Preference, Candidate] = {
    "retrieval": Candidate("graded", {"decode_power": 0.25, "ridge": None}),
    "cosine": Candidate("graded", {"decode_power": 0.0, "ridge": None}),
    "classification": Candidate("graded", {"decode_power": 0.25, "ridge": None}),
}


def candidates_for(prefer: Preference) -> tuple[Candidate, ...]:
    """All candidates for a preference."""
    powers = KERNEL_POWERS[prefer]
    kernels = (Candidate("kernel", {"decode_power": power}) for power in powers)
    return (*LINEAR_CANDIDATES, *kernels)


def decode_power(relative_power: float) -> float:
    """The power of the graded decoder for relative vectors made with a power in [0, 1]: the part
    that their encoding left.

    Plain cosines (0) need the full inverse, 1; vectors encoded with power 1 need .25.
    """
    return min(1.0, TOTAL_POWER - relative_power)


def decoder_options(relative_power: float) -> dict[str, float]:
    """Options of a graded decoder for relative vectors made with a power in [0, 1].

    The decoder regularises what the encoding has not: below power 1 a ridge of 1 keeps more
    neighbours than the anchors' own ridge (plain cosines, five kinds of embeddings: recall@10 .02
    higher), and far more of the cosine.
    """
    own = {} if relative_power >= 1.0 else {"ridge": 1.0}
    return {"decode_power": decode_power(relative_power), **own}


#: Options of a kernel that decodes relative vectors of an unknown source. It is fitted to the
#: target's own cosines, which predict its anchors without error, so nothing chooses a ridge.
KERNEL_DECODER_OPTIONS: Options = {"ridge": 1.0, "decode_power": 0.0}
