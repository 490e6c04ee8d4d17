"""Translators as safetensors files, with which a client translates at home."""

from __future__ import annotations

import orjson
from safetensors.torch import save

from app.errors import Conflict
from app.maths.translators.translator import Translator
from app.services.context import Services
from app.services.request_context import RequestContext
from app.services.translators.translators import FitRequest, find_translator, fit
from app.storage import tables


def read_file(services: Services, context: RequestContext, content: str) -> bytes:
    """Return the safetensors file of a translator, by its id.

    Raises TranslatorNotFound, Overloaded, TooMuchAtOnce, and Conflict if its anchors have other
    weights today.
    """
    row = find_translator(services, context.project, content)
    request = FitRequest(
        row.source.encoder.name,
        row.target.encoder.name,
        row.source.anchor_set.name,
        row.method,
        row.options,
    )
    fitted = fit(services, context, row.source, row.target, request)
    if fitted.id != content:
        raise Conflict(
            f"The translator {content!r} was fitted with other weights of its anchors. Fit it "
            "again with `POST /translators`.",
            field="id",
        )
    context.reserve_bytes(2 * fitted.translator.nbytes)  # tensors copied into one file
    return _serialise(row, fitted.translator)


def _serialise(row: tables.TranslatorRow, translator: Translator) -> bytes:
    decoder = translator.decoder
    tensors = {
        "source_mean": translator.source_mean,
        "matrix": decoder.matrix,
        "target_mean": decoder.mean,
    }
    if translator.landmarks is not None:
        tensors["landmarks"] = translator.landmarks
    about = {
        "id": row.content,
        "source": row.source.encoder.name,
        "target": row.target.encoder.name,
        "anchor_set": row.source.anchor_set.name,
        "method": row.method,
        "scale": decoder.scale,
        "renormalise": decoder.renormalise,
        "kernel": decoder.kernel,
        "kept_scale": translator.kept_scale,
    }
    return save(tensors, {"anchorage": orjson.dumps(about).decode()})
