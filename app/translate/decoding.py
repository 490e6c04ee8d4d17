"""The method and the options that decode relative vectors."""

from __future__ import annotations

from app.errors import InvalidOption, UnknownOption
from app.maths.translators import methods
from app.translate.fit import FitRequest


def resolve_decoding(
    request: FitRequest, relative_power: float, *, anchors: int
) -> tuple[str, methods.Options]:
    """Return the method that decodes relative vectors, and all its options.

    Raises UnknownOption, and InvalidOption for a power that the method cannot decode.
    """
    method, overrides = request.method, request.options
    if "encode_power" in overrides:
        raise UnknownOption(
            "`encode_power` does not apply to relative vectors. Set `relative_power` to the "
            "power that encoded them.",
            field="options.encode_power",
        )
    for name in ("min_quality", "index"):
        if getattr(request, name):
            raise InvalidOption(
                f"`{name}` does not apply to relative vectors. Remove it, or send vectors of "
                "a source.",
                field=name,
            )
    if "keep_norms" in overrides:
        raise UnknownOption(
            "`keep_norms` does not apply to relative vectors, because they have no norms. "
            "Remove it.",
            field="options.keep_norms",
        )
    if method in ("auto", "graded"):
        method, overrides = (
            "graded",
            {**methods.decoder_options(relative_power), **overrides},
        )
    elif method == "kernel" and request.source is None:
        overrides = {**methods.KERNEL_DECODER_OPTIONS, **overrides}
    options = methods.resolve(method, overrides, anchors=anchors)
    decodes = methods.METHODS[method].decode is not None
    if decodes and method != "graded" and relative_power != 0:
        raise InvalidOption(
            f"The method {method} only decodes `relative_power` 0, not {relative_power}. "
            "Use the method graded.",
            field="relative_power",
        )
    return method, options
