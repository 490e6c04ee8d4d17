"""Heads, and the predictions of a head for another encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from app.errors import InvalidHead, MissingField, NotExactlyOne
from app.heads.linear import LinearHead, linear_head
from app.maths import methods
from app.services import spaces, translation
from app.services.context import Services
from app.services.writes import note
from app.storage import registry, tables
from app.types import repeats


@dataclass(frozen=True, eq=False)
class Prediction:
    """scores (n, c), probabilities; labels (n,), indices into classes; method and translator are None for a native head.
    The flags (n,) are those of `Translated`, or None where nothing was translated.
    """

    scores: Tensor
    labels: Sequence[int]
    classes: Sequence[str]
    at_mean: Tensor | None
    outside: Tensor | None
    method: str | None
    translator: str | None


def create_head(
    services: Services,
    project: str,
    *,
    name: str,
    encoder: str | None,
    anchor_set: str | None,
    classes: Sequence[str],
    weight: Tensor,
    bias: Tensor | None,
) -> tables.Head:
    """Store a linear head of an encoder's space, or of an anchor set's relative space.

    Raises NotExactlyOne, NameTaken, InvalidHead, and the not-found errors.
    """
    if (encoder is None) == (anchor_set is None):
        raise NotExactlyOne("a head belongs to exactly one of encoder and anchor_set", field="encoder")
    if repeated := repeats(classes):
        raise InvalidHead("class names repeat", field="classes", rows=repeated)
    with services.db.transaction() as session:
        registry.require_free(session, tables.Head, project, name)
        row = tables.Head(project=project, name=name, kind="linear", classes=list(classes), encoder=None, anchor_set=None)
        if encoder is not None:
            row.encoder = registry.by_name(session, tables.Encoder, project, encoder, field="encoder")
            row.dim = row.encoder.dim
        if anchor_set is not None:
            row.anchor_set = registry.by_name(session, tables.AnchorSet, project, anchor_set, field="anchor_set")
            row.dim = row.anchor_set.size
        head = linear_head(weight, bias, dim=row.dim, classes=len(classes))
        row.blob = services.blobs.put(head.tensors())
        session.add(row)
        note(session, project, "create", "head", name, row)
    return row


def delete_head(services: Services, project: str, name: str) -> None:
    """Raises HeadNotFound."""
    with services.db.transaction() as session:
        registry.remove(session, registry.by_name(session, tables.Head, project, name))
        note(session, project, "delete", "head", name)


def stitch(
    services: Services,
    project: str,
    *,
    encoder: str,
    head: str,
    anchor_set: str | None,
    method: str,
    options: methods.Options,
    vectors: Tensor | None,
    inputs: Sequence[str] | None,
) -> Prediction:
    """The head's predictions for vectors or inputs of `encoder`: as they are, translated, or projected, as the head needs.

    Raises the not-found errors, NotExactlyOne, AnchorsNotEmbedded, InvalidHead (an absolute head of another encoder without an
    anchor set), and the option and vector errors.
    """
    with services.db.transaction() as session:
        row = registry.by_name(session, tables.Head, project, head, field="head")
        source = registry.by_name(session, tables.Encoder, project, encoder, field="encoder")
    spaces.check_answer(services, *spaces.sent(vectors, inputs), dim=len(row.classes))
    at_mean = outside = None
    used_method = translator = None
    if row.anchor_set is not None:
        _refuse_method(method, options, "a relative head reads relative vectors")
        if anchor_set is not None and anchor_set != row.anchor_set.name:
            raise InvalidHead(f"head {head!r} belongs to anchor set {row.anchor_set.name!r}", field="anchor_set")
        ready, at_mean = translation.relative(
            services, project, encoder=encoder, anchor_set=row.anchor_set.name, vectors=vectors, inputs=inputs
        )
    elif row.encoder_id == source.id:
        _refuse_method(method, options, f"head {head!r} was trained on {encoder!r} itself")
        ready = spaces.given_vectors(services, source, vectors, inputs)
    else:
        assert row.encoder is not None
        if anchor_set is None:
            raise MissingField(
                f"head {head!r} was trained on {row.encoder.name!r}: name the anchor_set to translate by",
                field="anchor_set",
            )
        request = translation.Request(encoder, row.encoder.name, anchor_set, method, options)
        answer = translation.translate(services, project, request, vectors=vectors, inputs=inputs)
        ready, at_mean, outside = answer.translated.vectors, answer.translated.at_mean, answer.translated.outside
        used_method, translator = answer.method, answer.translator
    scores = loaded_head(services, row).scores(ready)
    return Prediction(scores, scores.argmax(dim=1).tolist(), row.classes, at_mean, outside, used_method, translator)


def loaded_head(services: Services, row: tables.Head) -> LinearHead:
    return services.cache.get_or_make(
        ("head", row.blob),
        lambda: LinearHead(**services.blobs.get(row.blob)),
        lambda head: head.weight.nbytes + head.bias.nbytes,
    )


def _refuse_method(method: str, options: methods.Options, reason: str) -> None:
    """An option that would do nothing is refused, not ignored."""
    if method != "auto" or options:
        raise InvalidHead(f"{reason}: method and options have no place here", field="method")
