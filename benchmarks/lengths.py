"""What one length of translated vectors is worth on Cranfield: python -m benchmarks.lengths."""

import numpy as np
import torch
from rich.console import Console

from app.maths.geometry.space import fit_space
from app.maths.translators import methods
from app.maths.translators.translator import apply
from benchmarks.common import RESULTS, parser, show, write
from benchmarks.cranfield import CRANFIELD_ENCODERS, cranfield, mean_ndcg


def main() -> None:
    """Measure, show and write."""
    path, data = parser(__doc__, RESULTS / "lengths.json").parse_args().json, cranfield()
    table = [["change, anchors", "cosine, or one length", "distance", "inner product"]]
    pairs = [(x, y, k) for x in CRANFIELD_ENCODERS for y in CRANFIELD_ENCODERS for k in (300, 1000)]
    for old, new, count in (each for each in pairs if each[0] != each[1]):
        rows, name = np.random.default_rng(0).permutation(data.size)[:count], "kernel"
        x, y = (fit_space(torch.tensor(data.documents[each][rows])) for each in (old, new))
        fitted = methods.fit(name, x, y, methods.resolve(name, {}, anchors=count))
        made = apply(fitted, torch.tensor(data.documents[old])).vectors.numpy()
        products, lengths = data.queries[new] @ made.T, np.linalg.norm(made, axis=1)
        scores = (products / lengths, 2 * products - lengths**2, products)
        found = [mean_ndcg(data, np.argsort(-each, axis=1).tolist()) for each in scores]
        table.append([f"{old} to {new}, {count}", *(f"{each:.3f}" for each in found)])
    show(Console(width=100), {"lengths": table})
    write(path, {"lengths": table})


if __name__ == "__main__":
    main()
