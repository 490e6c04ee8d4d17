"""Fields of forms: an empty field is a field that the reader left out."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator, Field

from app.api.schemas.fields import NAME_PATTERN

NameField = Annotated[str, Query(pattern=NAME_PATTERN)]

_or_none = BeforeValidator(lambda value: None if value == "" else value)

CountField = Annotated[Annotated[int, Field(ge=1, lt=2**53)] | None, _or_none]
AnswerField = Annotated[bool | None, _or_none]
