"""Every way to fit a translator, by name.

An *independent* method makes its decoder from the target's anchors alone, so it can also decode
relative vectors of an unknown source; a *joint* method is fitted to the anchors of both spaces. The
kernel is joint, and decodes relative vectors too. A method chooses each option that is None from
the anchors that it is fitted to. So a fit that holds some of them out chooses without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption, MethodNotIndependent, UnknownOption
from app.maths.geometry.space import Space
from app.maths.translators import inverse, linear
from app.maths.translators.decoder import Decoder, make_decoder
from app.maths.translators.kernel import KernelFit, fit_kernel
from app.maths.translators.linear import Core, Pair
from app.maths.translators.translator import Translator, make_translator

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """One way to fit a translator.

    defaults  its options and their default values
    core      F (r_x, r_y) of a pair: T = V_x F V_y^T; None: a kernel, which is no matrix
    decode    the decoder D (k, d_y) of relative vectors, from the target's anchors alone
    """

    defaults: Options
    core: Callable[[Pair, Options], Core] | None
    decode: Callable[[Space, Options], Float64[Tensor, "k dy"]] | None = None


def _irp(y: Space, o: Options) -> Float64[Tensor, "k dy"]:
    return inverse.irp(y.unit, delta=o["delta"], omega=o["omega"], seed=o["seed"], noise=y.noise)


def _whitened(y: Space, o: Options) -> Float64[Tensor, "k dy"]:
    power = o.get("decode_power", 1.0)
    return linear.whitened(y, power=power, ridge=o["ridge"], field="options.decode_power")


def _decoder_core(
    decode: Callable[[Space, Options], Float64[Tensor, "k dy"]], pair: Pair, options: Options
) -> Core:
    """The core that combines plain cosines with a decoder in the span of the target's anchors."""
    decoder = decode(pair.target, options) @ pair.y.right.T
    return pair.x.values[:, None] * (pair.x.left.T @ decoder)


def _fit_kernel(source: Space, target: Space, options: Options) -> KernelFit:
    power = options["decode_power"]
    return fit_kernel(source, target, ridge=options["ridge"], decode_power=power)


def _kernel_decoder(source: Space, target: Space, options: Options) -> Float64[Tensor, "k dy"]:
    """B (k, d_y) for the cosines to all anchors: zero for those that are no landmarks."""
    fitted = _fit_kernel(source, target, options)
    decoder = target.unit.new_zeros(target.size, target.dim)
    decoder[fitted.rows] = fitted.weights
    return decoder


#: Options of every method.
OUTPUT_OPTIONS: Options = {"renormalise": True, "keep_norms": False}

METHODS: dict[str, Method] = {
    # The paper's inverse: pruned anchors, mean of omega subspaces.
    "irp": Method(
        {"delta": None, "omega": 8, "seed": 0, **OUTPUT_OPTIONS},
        core=partial(_decoder_core, _irp),
        decode=_irp,
    ),
    # The inverse in closed form, with a ridge in place of pruning.
    "irp-ridge": Method(
        {"ridge": 1.0, **OUTPUT_OPTIONS},
        core=partial(_decoder_core, _whitened),
        decode=_whitened,
    ),
    # Both sides whitened by a chosen power, each from its own anchors.
    "graded": Method(
        {
            "encode_power": 1.0,
            "decode_power": 0.25,
            "ridge": None,
            **OUTPUT_OPTIONS,
        },
        core=lambda pair, o: linear.graded(
            pair,
            encode_power=o["encode_power"],
            decode_power=o["decode_power"],
            ridge=o["ridge"],
        ),
        decode=_whitened,
    ),
    # The nearest rotation, fitted to both spaces' anchors.
    "procrustes": Method(OUTPUT_OPTIONS, core=lambda pair, o: pair.rotation),
    # Ridge regression, its ridge by generalised cross-validation.
    "ridge": Method(
        {"ridge": None, **OUTPUT_OPTIONS},
        core=lambda pair, o: linear.regression(pair, ridge=o["ridge"]),
    ),
    # Kernel ridge regression on the cosines with up to LANDMARKS anchors.
    "kernel": Method(
        {"ridge": None, "decode_power": 0.25, **OUTPUT_OPTIONS},
        core=None,
        decode=lambda y, o: _kernel_decoder(y, y, o),
    ),
}

#: Distinct anchors from which `auto` takes the kernel: people's judgements chose it
#: (docs/results/search.md).
KERNEL_ANCHORS = 100

#: The sum of the two powers of a good graded translator: (0, 1), (1/2, 3/4) and (1, 1/4) are each
#: near the best of their row.
TOTAL_POWER = 1.25

#: Options of a kernel that decodes relative vectors of an unknown source. It is fitted to the
#: target's own cosines, which predict its anchors without error, so nothing chooses a ridge.
KERNEL_DECODER_OPTIONS: Options = {"ridge": 1.0, "decode_power": 0.0}

#: torch.Generator takes seeds up to this one.
LARGEST_SEED = 2**63 - 1


def usual_method(anchors: int) -> str:
    """The method that `auto` takes for so many distinct anchors."""
    return "kernel" if anchors >= KERNEL_ANCHORS else "graded"


def decoder_options(relative_power: float) -> dict[str, float]:
    """Options of a graded decoder for relative vectors made with a power in [0, 1].

    The decoder has the part of the power that the encoding left: plain cosines (0) need the full
    inverse, 1; vectors encoded with power 1 need .25. It regularises what the encoding has not:
    below power 1 a ridge of 1 keeps more neighbours than the anchors' own ridge (plain cosines,
    five kinds of embeddings: recall@10 .02 higher), and far more of the cosine.
    """
    own = {} if relative_power >= 1.0 else {"ridge": 1.0}
    return {"decode_power": min(1.0, TOTAL_POWER - relative_power), **own}


def resolve(name: str, given: Options, *, anchors: int) -> dict[str, Any]:
    """The method's options: its defaults, overridden by `given`.

    anchors  k; the default omega shrinks to it, an omega in `given` does not
    Raises UnknownOption for an option that the method does not have, InvalidOption for a seed out
    of range and for more anchors than `irp` prunes.
    """
    method = METHODS[name]
    for option in given:
        if option not in method.defaults:
            known = ", ".join(sorted(method.defaults))
            raise UnknownOption(
                f"Method `{name}` has no option `{option}`. Its options: {known}.",
                field=f"options.{option}",
            )
    options = {**method.defaults, **given}
    if "omega" in options and "omega" not in given:
        options["omega"] = min(options["omega"], anchors)
    if name == "irp" and anchors > inverse.MAX_PRUNED:
        raise InvalidOption(
            f"`irp` prunes at most {inverse.MAX_PRUNED:,} anchors; the set has {anchors:,}. Use "
            "`irp-ridge`, the same inverse in closed form, or a smaller set.",
            field="method",
            limit=inverse.MAX_PRUNED,
        )
    if not 0 <= (options.get("seed") or 0) <= LARGEST_SEED:
        raise InvalidOption(
            f"`seed` must lie in [0, {LARGEST_SEED}], got {options['seed']}.",
            field="options.seed",
        )
    return options


def fit(name: str, source: Space, target: Space, options: Options) -> Translator:
    """The translator source -> target by the named method with resolved options. Raises
    InvalidOption.
    """
    core = METHODS[name].core
    landmarks = None
    if core is None:
        fitted = _fit_kernel(source, target, options)
        matrix, landmarks = fitted.weights, fitted.landmarks
    else:
        pair = Pair(source, target)
        matrix = pair.join(core(pair, options))
    return make_translator(
        source,
        target,
        matrix,
        renormalise=options["renormalise"],
        keep_norms=options["keep_norms"],
        landmarks=landmarks,
    )


def fit_decoder(
    name: str, target: Space, options: Options, *, source: Space | None = None
) -> Decoder:
    """The decoder for relative vectors, by a method that can decode them.

    source  the space whose cosines they are, if it is known: a kernel is then fitted to the pair,
            and decodes as `fit` translates
    Raises MethodNotIndependent and InvalidOption.
    """
    method = METHODS[name]
    if method.decode is None:
        raise MethodNotIndependent(
            f"Method `{name}` is fitted to both spaces, so it cannot decode relative vectors. "
            f"Use one of {', '.join(n for n, m in METHODS.items() if m.decode is not None)}.",
            field="method",
        )
    kernel = method.core is None
    if kernel and source is not None:
        matrix = _kernel_decoder(source, target, options)
    else:
        matrix = method.decode(target, options)
    return make_decoder(target, matrix, renormalise=options["renormalise"], kernel=kernel)
