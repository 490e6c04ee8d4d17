"""Which of several encoders ranks a corpus better, without judgements: an inverse cloze test.

From each text a window of consecutive words is cut out (Lee et al. 2019, arXiv 1906.00300). The
window is a query, the rest of the text is its only relevant document, and

    MRR = mean over the n texts of 1 / rank of the own rest among the n rests, by cosine.

It rises and falls with nDCG by judgements: benchmarks/search.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from app.maths.quality.metrics import IntervalEstimate

#: Words of a window, and fewest words of a text: the rest must stay longer than the window.
MIN_WINDOW, MAX_WINDOW, MIN_WORDS = 8, 12, 24

#: Texts unless a request names another number, and fewest whose interval counts.
USUAL_TEXTS, FEWEST_TEXTS = 250, 50

#: Half of a 95 % interval in standard errors.
STANDARD_ERRORS = 1.96


def cut_windows(texts: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The windows and rests of at most `count` texts, drawn at random.

    Texts of fewer words than MIN_WORDS, as spaces separate them, and repeated texts are left out.
    """
    generator = torch.Generator().manual_seed(0)
    distinct = dict.fromkeys(tuple(text.split()) for text in texts)
    split = [words for words in distinct if len(words) >= MIN_WORDS]
    pairs = []
    for row in torch.randperm(len(split), generator=generator)[:count].tolist():
        words = split[row]
        length = int(torch.randint(MIN_WINDOW, MAX_WINDOW + 1, (), generator=generator))
        start = int(torch.randint(len(words) - length + 1, (), generator=generator))
        end = start + length
        pairs.append((" ".join(words[start:end]), " ".join((*words[:start], *words[end:]))))
    return pairs


def reciprocal_ranks(
    windows: Float[Tensor, "n d"], rests: Float[Tensor, "n d"]
) -> Float64[Tensor, " n"]:
    """1 / rank of each window's own rest among all rests; of equal cosines, the middle rank.

    windows, rests  (n, d), row i of the same text
    """
    unit = torch.nn.functional.normalize
    cosines = unit(windows.double(), dim=1) @ unit(rests.double(), dim=1).T
    own = cosines.diagonal()[:, None]
    rounding = 1e-9
    above = (cosines > own + rounding).sum(dim=1)
    level = ((cosines - own).abs() <= rounding).sum(dim=1)
    return 1.0 / (above + (level + 1) / 2).double()


def mean_interval(values: Float64[Tensor, " n"]) -> IntervalEstimate:
    """The mean and mean +- 1.96 s / sqrt(n), with s the standard deviation, of n >= 2 values."""
    mean = float(values.mean())
    half = STANDARD_ERRORS * float(values.std()) / len(values) ** 0.5
    return IntervalEstimate(mean, mean - half, mean + half)
