"""What the paper prints, to stand next to what is measured here: other encoders, other items, the
same measures.

Cannistraci, Moschella, Maiorca, Fumero, Norelli and Rodolà 2023, "Bootstrapping Parallel Anchors
for Relative Representations". 15 seeds, 300 anchors, about 20,000 items, five random seeds. Only
rows between different spaces: within one space all are 1.
"""

from __future__ import annotations

from typing import Any

SOURCE = "Cannistraci et al. 2023, Bootstrapping Parallel Anchors for Relative Representations"

#: (mean, standard deviation over five seeds) of Jaccard, MRR and cosine at K = 10
Retrieved = dict[str, tuple[float, float]]


def _retrieved(
    jaccard: tuple[float, float], mrr: tuple[float, float], cosine: tuple[float, float]
) -> Retrieved:
    return {"jaccard": jaccard, "mrr": mrr, "cosine": cosine}


#: Tables 1 and 4: words, the anchors of Word2Vec optimised
WORDS = {
    "GT": {
        "fasttext -> w2v": _retrieved((0.34, 0.01), (0.94, 0.00), (0.86, 0.00)),
        "w2v -> fasttext": _retrieved((0.39, 0.00), (0.98, 0.00), (0.86, 0.00)),
    },
    "Seed, 15": {
        "fasttext -> w2v": _retrieved((0.06, 0.01), (0.11, 0.01), (0.85, 0.01)),
        "w2v -> fasttext": _retrieved((0.06, 0.01), (0.15, 0.02), (0.85, 0.01)),
    },
    "AO, 15": {
        "fasttext -> w2v": _retrieved((0.52, 0.00), (0.99, 0.00), (0.94, 0.00)),
        "w2v -> fasttext": _retrieved((0.50, 0.01), (0.99, 0.00), (0.94, 0.00)),
    },
}

#: Table 5: the anchors of FastText optimised instead; GT and Seed as in Table 4
WORDS_OTHER_WAY = {
    "AO, 15": {
        "fasttext -> w2v": _retrieved((0.49, 0.00), (0.98, 0.00), (0.93, 0.00)),
        "w2v -> fasttext": _retrieved((0.50, 0.00), (0.99, 0.00), (0.93, 0.00)),
    }
}

#: Table 7: CIFAR-10 by two ViTs
IMAGES = {
    "GT": {
        "ViT-base -> ViT-small": _retrieved((0.11, 0.00), (0.27, 0.01), (0.97, 0.00)),
        "ViT-small -> ViT-base": _retrieved((0.10, 0.00), (0.28, 0.01), (0.97, 0.00)),
    },
    "Seed, 15": {
        "ViT-base -> ViT-small": _retrieved((0.03, 0.00), (0.03, 0.01), (0.97, 0.00)),
        "ViT-small -> ViT-base": _retrieved((0.03, 0.00), (0.04, 0.01), (0.96, 0.00)),
    },
    "AO, 15": {
        "ViT-base -> ViT-small": _retrieved((0.10, 0.01), (0.23, 0.03), (0.97, 0.00)),
        "ViT-small -> ViT-base": _retrieved((0.10, 0.00), (0.28, 0.01), (0.97, 0.00)),
    },
}

#: Tables 2 and 6: five stars of Amazon reviews, a decoder of one language on the encoder of
#: another; weighted F1 and MAE
STITCHING = {
    "en decoder, en encoder": {
        "GT": {"f1": (0.64, 0.01), "mae": (0.43, 0.01)},
        "Seed, 15": {"f1": (0.50, 0.01), "mae": (0.69, 0.01)},
        "AO, 15": {"f1": (0.62, 0.01), "mae": (0.44, 0.01)},
    },
    "en decoder, es encoder": {
        "GT": {"f1": (0.51, 0.01), "mae": (0.67, 0.02)},
        "Seed, 15": {"f1": (0.44, 0.01), "mae": (0.80, 0.01)},
        "AO, 15": {"f1": (0.48, 0.01), "mae": (0.70, 0.02)},
    },
    "es decoder, en encoder": {
        "GT": {"f1": (0.50, 0.02), "mae": (0.72, 0.04)},
        "Seed, 15": {"f1": (0.41, 0.01), "mae": (0.92, 0.02)},
        "AO, 15": {"f1": (0.46, 0.01), "mae": (0.76, 0.02)},
    },
    "es decoder, es encoder": {
        "GT": {"f1": (0.60, 0.01), "mae": (0.45, 0.01)},
        "Seed, 15": {"f1": (0.48, 0.01), "mae": (0.70, 0.01)},
        "AO, 15": {"f1": (0.61, 0.01), "mae": (0.44, 0.01)},
    },
}

TABLES: dict[str, dict[str, Any]] = {
    "1 and 4": {"what": "words, the anchors of Word2Vec optimised", "rows": WORDS},
    "5": {"what": "words, the anchors of FastText optimised", "rows": WORDS_OTHER_WAY},
    "2 and 6": {"what": "star ratings of Amazon reviews: weighted F1 and MAE", "rows": STITCHING},
    "7": {"what": "CIFAR-10 by two ViTs", "rows": IMAGES},
}
