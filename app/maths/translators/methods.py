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

from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption, MethodNotIndependent, UnknownOption
from app.maths.geometry.pair import Core, Pair
from app.maths.geometry.space import Space, uncentred, unscaled
from app.maths.geometry.spectrum import check_power
from app.maths.translators import align, graded, inverse
from app.maths.translators.decoder import Decoder, make_decoder
from app.maths.translators.kernel import KernelFit, fit_kernel, whiten
from app.maths.translators.translator import Translator, make_translator

Option = float | int | bool | None
Options = Mapping[str, Option]


@dataclass(frozen=True)
class Method:
    """One way to fit a translator.

    defaults  its options and their default values
    core      F (r_x, r_y) of a pair: T = V_x F V_y^T; None: a kernel, which is no matrix
    decode    the decoder D (k, d_y) of relative vectors, from the target's anchors alone
    encode    independent methods: the source's projector E (d_x, k), so that T = E D
    affine    whether it maps x - m and not its direction, so that it translates lengths too
    """

    summary: str
    defaults: Options
    core: Callable[[Pair, Options], Core] | None
    decode: Callable[[Space, Options], Float64[Tensor, "k dy"]] | None = None
    encode: Callable[[Space, Options], Float64[Tensor, "dx k"]] | None = None
    affine: bool = False

    @property
    def independent(self) -> bool:
        return self.encode is not None

    def core_of(self, pair: Pair, options: Options) -> Core:
        """F of a pair, by a linear method."""
        assert self.core is not None
        return self.core(pair, options)


def _required_float(options: Options, name: str) -> float:
    value = options[name]
    assert value is not None
    return float(value)


def _optional_float(options: Options, name: str) -> float | None:
    return None if options[name] is None else _required_float(options, name)


def _required_int(options: Options, name: str) -> int:
    """An integer option; a seed of 63 bits would lose digits as a float."""
    value = options[name]
    assert value is not None
    return int(value)


def _irp(y: Space, o: Options) -> Float64[Tensor, "k dy"]:
    return inverse.irp(
        y.unit,
        directions=y.directions,
        delta=_required_float(o, "delta"),
        omega=_required_int(o, "omega"),
        seed=_required_int(o, "seed"),
        noise=y.noise,
    )


def _decoder_core(
    decode: Callable[[Space, Options], Float64[Tensor, "k dy"]], pair: Pair, options: Options
) -> Core:
    """The core that combines plain cosines with a decoder in the span of the target's anchors."""
    decoder = decode(pair.target, options) @ pair.y.right.T
    return pair.x.values[:, None] * (pair.x.left.T @ decoder)


def _irp_ridge(y: Space, o: Options) -> Float64[Tensor, "k dy"]:
    return inverse.irp_ridge(y.unit, ridge=_required_float(o, "ridge"), noise=y.noise)


def _fit_kernel(source: Space, target: Space, options: Options) -> KernelFit:
    ridge, landmarks = kernel_options(options)
    check_power(power := _required_float(options, "decode_power"), "options.decode_power")
    return whiten(fit_kernel(source, target, ridge=ridge, landmarks=landmarks), target, power=power)


def _kernel_decoder(source: Space, target: Space, options: Options) -> Float64[Tensor, "k dy"]:
    """B (k, d_y) for the cosines to all anchors: zero for those that are no landmarks."""
    fitted = _fit_kernel(source, target, options)
    decoder = target.unit.new_zeros(target.size, target.dim)
    decoder[fitted.rows] = fitted.weights
    return decoder


#: Options of every method but the affine one.
OUTPUT_OPTIONS: Options = {"renormalise": True, "keep_norms": False}

METHODS: dict[str, Method] = {
    "irp": Method(
        "the paper's inverse: pruned anchors, mean of omega subspaces",
        {"delta": 0.6, "omega": 8, "seed": 0, **OUTPUT_OPTIONS},
        core=partial(_decoder_core, _irp),
        decode=_irp,
        encode=lambda x, o: x.unit.T,
    ),
    "irp-ridge": Method(
        "the inverse in closed form, with a ridge in place of pruning",
        {"ridge": 1.0, **OUTPUT_OPTIONS},
        core=partial(_decoder_core, _irp_ridge),
        decode=_irp_ridge,
        encode=lambda x, o: x.unit.T,
    ),
    "graded": Method(
        "both sides whitened by a chosen power, each from its own anchors",
        {
            "encode_power": 1.0,
            "decode_power": 0.25,
            "ridge": None,
            "centre": True,
            **OUTPUT_OPTIONS,
        },
        core=lambda pair, o: graded.core(
            pair,
            encode_power=_required_float(o, "encode_power"),
            decode_power=_required_float(o, "decode_power"),
            ridge=_optional_float(o, "ridge"),
        ),
        decode=lambda y, o: graded.decoder(
            y.unit,
            power=_required_float(o, "decode_power"),
            ridge=_optional_float(o, "ridge"),
            noise=y.noise,
        ),
        encode=lambda x, o: graded.projector(
            x.unit,
            power=_required_float(o, "encode_power"),
            ridge=_optional_float(o, "ridge"),
            noise=x.noise,
        ),
    ),
    "procrustes": Method(
        "the nearest rotation, fitted to both spaces' anchors",
        {"centre": True, **OUTPUT_OPTIONS},
        core=lambda pair, o: align.procrustes(pair),
    ),
    "ridge": Method(
        "ridge regression, its ridge by generalised cross-validation",
        {"ridge": None, "centre": True, **OUTPUT_OPTIONS},
        core=lambda pair, o: align.regression(pair, ridge=_optional_float(o, "ridge")),
    ),
    "toward-procrustes": Method(
        "ridge regression that shrinks towards a rotation",
        {"ridge": None, "centre": True, **OUTPUT_OPTIONS},
        core=lambda pair, o: align.toward_procrustes(pair, ridge=_optional_float(o, "ridge")),
    ),
    "reduced-rank": Method(
        "ridge regression through a few directions",
        {"ridge": None, "rank": None, "centre": True, **OUTPUT_OPTIONS},
        core=lambda pair, o: align.reduced_rank(
            pair,
            ridge=_optional_float(o, "ridge"),
            rank=None if o["rank"] is None else _required_int(o, "rank"),
        ),
    ),
    "canonical": Method(
        "whitened on both sides, rotated, and the target's spectrum put back in part",
        {
            "ridge": None,
            "correlation_power": 0.5,
            "dewhiten": 0.5,
            "centre": True,
            **OUTPUT_OPTIONS,
        },
        core=lambda pair, o: align.canonical(
            pair,
            ridge=_optional_float(o, "ridge"),
            correlation_power=_required_float(o, "correlation_power"),
            dewhiten=_required_float(o, "dewhiten"),
        ),
    ),
    "affine": Method(
        "ridge regression of the vectors as they are, lengths and all, with an intercept",
        {"ridge": None},
        core=lambda pair, o: align.regression(pair, ridge=_optional_float(o, "ridge")),
        affine=True,
    ),
    "kernel": Method(
        "kernel ridge regression on the cosines with up to `landmarks` anchors",
        {"ridge": None, "decode_power": 0.25, "landmarks": 2048, **OUTPUT_OPTIONS},
        core=None,
        decode=lambda y, o: _kernel_decoder(y, y, o),
    ),
}

#: torch.Generator takes seeds up to this one.
LARGEST_SEED = 2**63 - 1


def resolve(name: str, given: Options, *, anchors: int) -> dict[str, Option]:
    """The method's options: its defaults, overridden by `given`.

    anchors  k; the default omega shrinks to it, an omega in `given` does not
    Raises UnknownOption for an option that the method does not have, InvalidOption for a seed out
    of range.
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
        options["omega"] = min(_required_int(options, "omega"), anchors)
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
    if METHODS[name].core is None:
        fitted = _fit_kernel(source, target, options)
        return make_translator(
            source,
            target,
            fitted.weights,
            renormalise=bool(options["renormalise"]),
            keep_norms=bool(options["keep_norms"]),
            landmarks=fitted.landmarks,
        )
    pair = pair_for(name, source, target, options)
    return translator_of_core(name, pair, METHODS[name].core_of(pair, options), options)


def kernel_options(options: Options) -> tuple[float | None, int]:
    """The ridge and the number of landmarks of the method `kernel`."""
    return _optional_float(options, "ridge"), _required_int(options, "landmarks")


def pair_for(name: str, source: Space, target: Space, options: Options) -> Pair:
    """The two spaces as the method needs them: about their means or the origin, rows scaled to unit
    length or not.
    """
    if METHODS[name].affine:
        return Pair(unscaled(source), unscaled(target))
    if not options.get("centre", True):
        return Pair(uncentred(source), uncentred(target))
    return Pair(source, target)


def translator_of_core(name: str, pair: Pair, core: Core, options: Options) -> Translator:
    """The translator of a core that the named method computed for a pair."""
    if METHODS[name].affine:
        return make_translator(
            pair.source, pair.target, pair.join(core), renormalise=False, keep_norms=True
        )
    return make_translator(
        pair.source,
        pair.target,
        pair.join(core),
        renormalise=bool(options["renormalise"]),
        keep_norms=bool(options["keep_norms"]),
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
    return make_decoder(target, matrix, renormalise=bool(options["renormalise"]), kernel=kernel)
