"""Every way to fit a translator, by name. Open this file to see them all.

An *independent* method makes its decoder from the target's anchors alone, so it can also decode relative vectors whose source
is unknown; a *joint* one is fitted to both spaces' anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from app.errors import InvalidOption, MethodNotIndependent, UnknownOption
from app.maths import align, graded, inverse
from app.maths.space import Space
from app.maths.translator import Decoder, Translator, make_decoder, make_translator

Option = float | int | bool
Options = Mapping[str, Option]


@dataclass(frozen=True)
class Method:
    """defaults  the options it takes, and their values where none is given
    decode    independent methods: the target's decoder D (k, d_y)
    encode    independent methods: the source's projector E (d_x, k)
    align     joint methods: T (d_x, d_y) itself
    """

    summary: str
    defaults: Options
    decode: Callable[[Space, Options], Float64[Tensor, "k dy"]] | None = None
    encode: Callable[[Space, Options], Float64[Tensor, "dx k"]] | None = None
    align: Callable[[Space, Space, Options], Float64[Tensor, "dx dy"]] | None = None

    @property
    def independent(self) -> bool:
        return self.decode is not None


METHODS: dict[str, Method] = {
    "irp": Method(
        "the paper's inverse: pruned anchors, mean of omega subspaces",
        {"delta": 0.6, "omega": 8, "seed": 0, "renormalise": True, "keep_norms": False},
        decode=lambda y, o: inverse.irp(y.unit, delta=float(o["delta"]), omega=int(o["omega"]), seed=int(o["seed"])),
        encode=lambda x, o: x.unit.T,
    ),
    "irp-ridge": Method(
        "the inverse in closed form, with a ridge in place of pruning",
        {"ridge": 1.0, "renormalise": True, "keep_norms": False},
        decode=lambda y, o: inverse.irp_ridge(y.unit, ridge=float(o["ridge"])),
        encode=lambda x, o: x.unit.T,
    ),
    "graded": Method(
        "both sides whitened by a chosen power, each from its own anchors",
        {"encode_power": 1.0, "decode_power": 0.25, "ridge": 1.0, "renormalise": True, "keep_norms": False},
        decode=lambda y, o: graded.decoder(y.unit, power=float(o["decode_power"]), ridge=float(o["ridge"])),
        encode=lambda x, o: graded.projector(x.unit, power=float(o["encode_power"]), ridge=float(o["ridge"])),
    ),
    "procrustes": Method(
        "the nearest rotation, fitted to both spaces' anchors",
        {"renormalise": True, "keep_norms": False},
        align=lambda x, y, o: align.procrustes(x.unit, y.unit),
    ),
    "ridge": Method(
        "ridge regression, fitted to both spaces' anchors",
        {"ridge": 1.0, "renormalise": True, "keep_norms": False},
        align=lambda x, y, o: align.ridge(x.unit, y.unit, ridge=float(o["ridge"])),
    ),
}

#: seeds are what torch.Generator takes
LARGEST_SEED = 2**63 - 1


def resolve(name: str, given: Options, *, anchors: int) -> dict[str, Option]:
    """The method's options, the given ones over its defaults.

    anchors  k; the default omega shrinks to it, a given one does not
    Raises UnknownOption for an option the method does not take, InvalidOption for a seed out of range.
    """
    method = METHODS[name]
    for option in given:
        if option not in method.defaults:
            known = ", ".join(sorted(method.defaults))
            raise UnknownOption(f"{name} takes {known}; not {option}", field=f"options.{option}")
    options = {**method.defaults, **given}
    if "omega" in options and "omega" not in given:
        options["omega"] = min(int(options["omega"]), anchors)
    if not 0 <= options.get("seed", 0) <= LARGEST_SEED:
        raise InvalidOption(f"seed must lie in [0, {LARGEST_SEED}], got {options['seed']}", field="options.seed")
    return options


def fit(name: str, source: Space, target: Space, options: Options) -> Translator:
    """The translator source -> target by the named method and its resolved options. Raises InvalidOption."""
    method = METHODS[name]
    if method.align is not None:
        matrix = method.align(source, target, options)
    else:
        assert method.encode is not None
        assert method.decode is not None
        matrix = method.encode(source, options) @ method.decode(target, options)
    shape = {name: bool(options[name]) for name in ("renormalise", "keep_norms")}
    return make_translator(source, target, matrix, **shape)


def fit_decoder(name: str, target: Space, options: Options) -> Decoder:
    """The decoder for relative vectors, by an independent method. Raises MethodNotIndependent and InvalidOption."""
    decode = METHODS[name].decode
    if decode is None:
        raise MethodNotIndependent(
            f"{name} is fitted to both spaces, so it cannot decode relative vectors; "
            f"use {', '.join(n for n, m in METHODS.items() if m.independent)}",
            field="method",
        )
    return make_decoder(target, decode(target, options), renormalise=bool(options["renormalise"]))
