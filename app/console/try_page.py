"""/console/try: what one text or vector finds, by its own vector and by its translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from torch import Tensor
from torch.nn.functional import cosine_similarity

from app.api.http import answers
from app.api.http.admission import CONSOLE
from app.api.http.deps import ReadContext, Reads, Svc
from app.api.http.problems import status_of
from app.api.schemas.fields import parse_vector
from app.console import wording
from app.console.forms import Form, text_of
from app.console.map_page import PairChoice, choose_pair
from app.console.pages import render
from app.errors import AnchorageError, InvalidRequest, Malformed
from app.services import incoming
from app.services.anchors import spaces
from app.services.anchors.nearest_anchors import FoundAnchor, find_nearest
from app.services.context import Services
from app.services.encoders.encoding import Inputs, encode
from app.services.request_context import RequestContext
from app.services.serving import apply, confidence
from app.services.serving.apply import MappedVectors, Translation
from app.services.serving.confidence import RowConfidence
from app.services.translators.translators import FitRequest
from app.services.translators.warnings import AnswerWarning
from app.storage import tables

router = APIRouter()

TRY = f"{CONSOLE}/try"

#: items of each list
MAX_FOUND = 10

#: of the confidence interval
TRIAL_LEVEL = 0.9

#: the form's fields, by the fields that the services' errors name
FORM_FIELDS = {"vectors": "vector", "inputs": "text"}

#: statuses of mistakes that the form shows; others are problems of the page
SHOWN_IN_FORM = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}


@dataclass(frozen=True)
class TrialInput:
    """What the reader sent: a text or a vector of the source, and perhaps one of the target."""

    text: str = ""
    vector: str = ""
    native: str = ""


@dataclass(frozen=True)
class Trial:
    """What one text or vector finds among the anchors.

    native, translated  the anchors found, best first; `native` is None without a native vector
    shared              rows in both lists
    cosine              of the two vectors, after centring; None without a native vector
    """

    native: Sequence[FoundAnchor] | None
    translated: Sequence[FoundAnchor]
    shared: frozenset[int]
    cosine: float | None
    flags: Sequence[str]
    warnings: Sequence[AnswerWarning]
    expected: dict[str, Any]
    method: str
    translator: str | None


@router.get(TRY)
def show_form(
    request: Request,
    services: Svc,
    project: Reads,
    anchor_set: str = "",
    source: str = "",
    target: str = "",
) -> Response:
    """Shows the form."""
    choice = choose_pair(services, project, anchor_set, source, target)
    return _page(request, choice, TrialInput())


@router.post(TRY)
def try_input(request: Request, services: Svc, context: ReadContext, form: Form) -> Response:
    """Shows what the text or vector finds, or what is wrong at the field.

    Raises the errors of `run_trial` that no change of the form can mend.
    """
    names = [text_of(form, name) for name in ("anchor_set", "source", "target")]
    choice = choose_pair(services, context.project, *names)
    sent = TrialInput(*(text_of(form, name) for name in ("text", "vector", "native")))
    if choice is None or choice.mistakes:
        return _page(request, choice, sent, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        trial = run_trial(services, context, choice, sent)
    except AnchorageError as error:
        status = status_of(error)
        if status not in SHOWN_IN_FORM:
            raise
        field = FORM_FIELDS.get(error.field or "", error.field)
        return _page(request, choice, sent, status=status, mistakes={field or "": error.detail})
    return _page(request, choice, sent, trial=trial)


def run_trial(
    services: Services, context: RequestContext, choice: PairChoice, sent: TrialInput
) -> Trial:
    """Returns what the text or vector finds.

    Raises InvalidRequest, Malformed, and the errors of `apply_map`, `confidence_of` and `encode`.
    """
    if bool(sent.text) == bool(sent.vector):
        detail = "Enter a text or a vector, not both." if sent.text else "Enter a text or a vector."
        raise InvalidRequest(detail, field="text")
    given = None if not sent.native else read_vector(sent.native, "native")
    answer = apply.apply_map(
        services,
        context,
        Translation(FitRequest(choice.source, choice.target, choice.anchor_set, "auto", {})),
        vectors=read_vector(sent.vector, "vector") if sent.vector else None,
        inputs=Inputs([sent.text]) if sent.text else None,
    )
    assert answer.served.pair is not None
    target = answer.served.pair[1]
    native = _native_vector(services, context, target, sent.text, given)
    found = find_nearest(services, target, answer.output.vectors[0], MAX_FOUND)
    own = None if native is None else find_nearest(services, target, native, MAX_FOUND)
    judged = confidence.confidence_of(services, context, answer, TRIAL_LEVEL, field="vectors")
    return Trial(
        native=own,
        translated=found,
        shared=frozenset({each.row for each in found} & {each.row for each in own or ()}),
        cosine=None if native is None else _cosine(services, target, answer, native),
        flags=_flags(answer, judged),
        warnings=answer.served.warnings,
        expected=_expectation(judged),
        method=str(answer.served.method),
        translator=answer.served.id,
    )


def read_vector(text: str, field: str) -> Tensor:
    """Returns a JSON list of numbers, or a list with one such list, as one row (1, d).

    Raises Malformed, BadShape, BadDtype and EmptyVectors, which name the field.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            f"This is not a JSON list of numbers, such as [0.25, -0.5]: {error}.", field=field
        ) from None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return parse_vector(value, field)[None]


def _native_vector(
    services: Services,
    context: RequestContext,
    target: tables.SpaceRow,
    text: str,
    given: Tensor | None,
) -> Tensor | None:
    """Returns the target encoder's own vector: what was sent, or the text encoded now."""
    encoder = target.encoder
    if given is not None:
        return incoming.checked_vectors(
            given, field="native", limits=services.limits, dim=encoder.dim
        )[0]
    if not text or encoder.model is None:
        return None
    return encode(services, context, encoder, [text], field="text").vectors[0]


def _cosine(
    services: Services, target: tables.SpaceRow, answer: MappedVectors, native: Tensor
) -> float:
    mean = spaces.fitted_space(services, target).mean
    translated = answer.output.vectors[0].double()
    return float(cosine_similarity(translated - mean, native.double() - mean, dim=0))


def _flags(answer: MappedVectors, judged: RowConfidence) -> list[str]:
    """Returns the flags of the row in words."""
    found = answers.flags(
        answer.output.at_mean,
        answer.output.outside,
        truncated=answer.truncated,
        strange=judged.expected.strange,
    )
    return [wording.FLAGS[flag["code"]] for flag in found]


def _expectation(judged: RowConfidence) -> dict[str, Any]:
    """Returns the expected cosine and its interval; None where there is no number, which `reason`
    explains.
    """
    expected = judged.expected
    numbers = {"cosine": expected.cosine, "low": expected.low, "high": expected.high}
    known = {name: float(each[0]) for name, each in numbers.items() if each[0].isfinite()}
    return {**dict.fromkeys(numbers), **known, "level": judged.level, "reason": judged.reason}


def _page(
    request: Request,
    choice: PairChoice | None,
    sent: TrialInput,
    *,
    status: int = HTTPStatus.OK,
    mistakes: dict[str, str] | None = None,
    trial: Trial | None = None,
) -> Response:
    return render(
        request,
        "try.html",
        status=status,
        choice=choice,
        sent=sent,
        mistakes=mistakes or {},
        trial=trial,
    )
