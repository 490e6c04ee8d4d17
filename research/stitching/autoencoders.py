"""Fashion-MNIST autoencoders and VAEs: the encoder of one seed stitched to the decoder of another.

As Moschella et al. 2023, Table 3, and beyond it: absolute codes stitched by translation.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from app.maths.geometry.sampling import draw_uniformly
from app.maths.translators.methods import Options
from app.maths.translators.translator import apply
from benchmarks.common import DATA
from research.stitching.measure import (
    NATIVE,
    RELATIVE,
    RELATIVE_NATIVE,
    UNTRANSLATED,
    Accuracies,
    Fits,
)

NETWORKS, ANCHORS = 5, 500
IMAGES, EPOCHS, BATCH, RATE = 20_000, 6, 250, 1e-3
PIXELS, HIDDEN, LATENT = 784, 400, 100

#: MSE is shown in thousandths of squared pixel values in [0, 1]; in that unit the paper's absolute
#: numbers are plausible
UNIT = 1000.0

VARIANTS: dict[str, tuple[str, Options]] = {
    "irp, delta 0.3": ("irp", {"delta": 0.3}),
    "irp, delta 0.6": ("irp", {"delta": 0.6}),
    "irp, delta 0.8": ("irp", {"delta": 0.8}),
    "irp, delta 0.3, not renormalised": ("irp", {"delta": 0.3, "renormalise": False}),
    "irp, delta 0.6, not renormalised": ("irp", {"delta": 0.6, "renormalise": False}),
    "irp, delta 0.8, not renormalised": ("irp", {"delta": 0.8, "renormalise": False}),
    "procrustes": ("procrustes", {}),
    "ridge": ("ridge", {"ridge": 1.0}),
    "graded (1, .25), lambda 1": ("graded", {"ridge": 1.0}),
    "graded (1, .25), lambda .3": ("graded", {"ridge": 0.3}),
    "ridge, lambda .1": ("ridge", {"ridge": 0.1}),
    "ridge, lambda .1, not renormalised": ("ridge", {"ridge": 0.1, "renormalise": False}),
    "irp, delta 0.6, norms kept": ("irp", {"delta": 0.6, "keep_norms": True}),
    "procrustes, norms kept": ("procrustes", {"keep_norms": True}),
    "ridge, lambda .1, norms kept": ("ridge", {"ridge": 0.1, "keep_norms": True}),
    "ridge, lambda .1, not renormalised, norms kept": (
        "ridge",
        {"ridge": 0.1, "renormalise": False, "keep_norms": True},
    ),
    "graded (1, .25), lambda .3, norms kept": ("graded", {"ridge": 0.3, "keep_norms": True}),
}

PAPER: dict[str, Any] = {
    "AE": {
        NATIVE: "1.57 ± .03",
        UNTRANSLATED: "120.54 ± 6.81",
        RELATIVE_NATIVE: "3.59 ± .04",
        RELATIVE: "6.37 ± .29",
    },
    "VAE": {
        NATIVE: "4.38 ± .03",
        UNTRANSLATED: "118.96 ± 2.96",
        RELATIVE_NATIVE: "6.81 ± .06",
        RELATIVE: "24.03 ± 13.15",
    },
    "source": "Moschella et al. 2023, Table 3, F-MNIST: convolutional, 500 latent dimensions and "
    "anchors; its unit is not stated",
}
NOTE = (
    f"Fully connected networks 784-{HIDDEN}-{LATENT}-{HIDDEN}-784 (the paper's: convolutional, "
    f"latent 500), {IMAGES:,} training images, {EPOCHS} epochs, five seeds, 20 ordered pairs, "
    f"{ANCHORS} anchors drawn once; MSE x 1000 on the 10,000 test images. Relative decoders read "
    f"{ANCHORS} cosines, trained end to end without gradient through the anchors. A translation "
    "carries directions, unless norms are kept (the option keep_norms, which the paper's method "
    "has not). For a VAE native is no ceiling: its decoder learned from noisy codes, and its own "
    "mean codes, drawn out by a fifth, are decoded better than they are as they stand. Where irp "
    "draws them out, it profits from that, so VAE gaps say little."
)


class Autoencoder(nn.Module):
    """An encoder to LATENT numbers (if variational, a mean and a log-variance), and a decoder.

    With `anchors` (k, PIXELS), which are images, the decoder reads the cosines of a code to their
    codes; with None it reads the code itself.
    """

    def __init__(self, *, variational: bool, anchors: Tensor | None) -> None:
        super().__init__()
        self.variational, self.anchors = variational, anchors
        outputs = 2 * LATENT if variational else LATENT
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
        )
        inputs = LATENT if anchors is None else len(anchors)
        self.decoder = nn.Sequential(
            nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PIXELS), nn.Sigmoid()
        )

    def encode(self, images: Tensor) -> Tensor:
        """The code (n, LATENT); for a VAE, the mean."""
        codes: Tensor = self.encoder(images)[:, :LATENT]
        return codes

    def coordinates(self, codes: Tensor) -> Tensor:
        """What the decoder reads: the codes, or their cosines to the anchors' codes."""
        if self.anchors is None:
            return codes
        with torch.no_grad():
            anchors = normalize(self.encode(self.anchors))
        return normalize(codes) @ anchors.T

    def loss(self, images: Tensor) -> Tensor:
        """Squared error summed over pixels, mean over images; for a VAE plus KL(N(mean, variance)
        || N(0, 1)).
        """
        encoded = self.encoder(images)
        codes, divergence = encoded[:, :LATENT], torch.zeros(())
        if self.variational:
            log_variance = encoded[:, LATENT:]
            divergence = (
                0.5 * (codes.square() + log_variance.exp() - 1 - log_variance).sum(dim=1).mean()
            )
            codes = codes + torch.randn_like(codes) * (0.5 * log_variance).exp()
        error: Tensor = self.decoder(self.coordinates(codes)) - images
        return error.square().sum(dim=1).mean() + divergence


def images(name: str) -> Tensor:
    """(n, 784) in [0, 1] from an IDX file."""
    with gzip.open(DATA / f"fashion-mnist/{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, PIXELS)
    return torch.from_numpy(pixels.astype(np.float32) / 255)


def trained(data: Tensor, seed: int, *, variational: bool, anchors: Tensor | None) -> Autoencoder:
    torch.manual_seed(seed)
    network = Autoencoder(variational=variational, anchors=anchors)
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(data)), BATCH):
            optimiser.zero_grad()
            network.loss(data[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return network.eval()


@torch.no_grad()
def error(network: Autoencoder, coordinates: Tensor, truth: Tensor) -> float:
    return UNIT * float((network.decoder(coordinates) - truth).square().mean())


@torch.no_grad()
def stitch_absolute(networks: list[Autoencoder], anchors: Tensor, test: Tensor) -> Accuracies:
    """Mean squared errors of every ordered pair: codes as they are, or translated."""
    codes = [network.encode(test) for network in networks]
    fits = Fits({str(place): network.encode(anchors) for place, network in enumerate(networks)})
    found: Accuracies = {}
    for i, j in permutations(range(len(networks)), 2):

        def stitched(method: str, options: Options, i: int = i, j: int = j) -> float:
            return error(
                networks[j],
                apply(fits.translator(method, options, str(i), str(j)), codes[i]).vectors,
                test,
            )

        row = {
            NATIVE: error(networks[j], codes[j], test),
            UNTRANSLATED: error(networks[j], codes[i], test),
        }
        row |= {name: stitched(*variant) for name, variant in VARIANTS.items()}
        found[str(i), str(j)] = row
    return found


@torch.no_grad()
def stitch_relative(networks: list[Autoencoder], test: Tensor) -> Accuracies:
    coordinates = [network.coordinates(network.encode(test)) for network in networks]
    return {
        (str(i), str(j)): {
            RELATIVE: error(networks[j], coordinates[i], test),
            RELATIVE_NATIVE: error(networks[j], coordinates[j], test),
        }
        for i, j in permutations(range(len(networks)), 2)
    }


def measure_all(advance: Callable[[], None]) -> dict[str, Accuracies]:
    """Errors of the 20 ordered pairs of five networks, for AE and VAE."""
    train, test = images("train"), images("t10k")
    data = train[draw_uniformly(len(train), size=IMAGES, seed=0)]
    anchors = data[draw_uniformly(IMAGES, size=ANCHORS, seed=1)]
    found = {}
    for name, variational in (("AE", False), ("VAE", True)):
        networks: dict[bool, list[Autoencoder]] = {False: [], True: []}
        for relative in (False, True):
            for seed in range(NETWORKS):
                fixed = anchors if relative else None
                networks[relative].append(
                    trained(
                        data, seed + NETWORKS * relative, variational=variational, anchors=fixed
                    )
                )
                advance()
        cells = stitch_absolute(networks[False], anchors, test)
        for pair, row in stitch_relative(networks[True], test).items():
            cells[pair] |= row
        found[name] = cells
    return found
