"""The words of /encoders."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from app.encoders.check import EncoderCheck
from app.encoders.models.base import ModelIdentity
from app.encoders.models.options import OPTIONS_BY_KIND, ImageOptions, RemoteOptions, TextOptions
from app.errors import InvalidRequest
from app.http.field_errors import located
from app.http.fields import Body, InputsBody, Name, RowModel, Vectors
from app.types import EncoderKind

#: Hub ids, names of folders, and models of endpoints, such as nomic-embed-text:latest or
#: @cf/baai/bge-base-en-v1.5. A name that leads out of the models' folder is not found there.
MODEL_PATTERN = r"^[A-Za-z0-9@][A-Za-z0-9@._:/-]{0,199}$"


class NewEncoder(Body):
    """An encoder to register."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "ada-002", "kind": "external", "dim": 1536},
                {"name": "minilm", "kind": "sentence-transformers", "model": "all-MiniLM-L6-v2"},
                {"name": "resnet", "kind": "timm", "model": "resnet10t"},
                {
                    "name": "hosted",
                    "kind": "openai",
                    "model": "text-embedding-3-small",
                    "options": {"url": "https://api.openai.com/v1", "dim": 512},
                },
            ]
        }
    )

    name: Name = Field(description="Name of the encoder, unique in the project.")
    kind: Literal["external", "sentence-transformers", "timm", "openai"] = Field(
        "external",
        description="Who runs the encoder: `external` the client, `openai` an endpoint that speaks "
        "OpenAI's API, the others the service.",
    )
    dim: Annotated[int, Field(ge=1, le=8_192)] | None = Field(
        None,
        description="Dimension of the vectors, 1 to 8,192. "
        "Required for an external encoder, and only for that.",
    )
    model: Annotated[str, Field(pattern=MODEL_PATTERN)] | None = Field(
        None,
        description="Hub id, folder or endpoint's name of the model. "
        "Required unless the encoder is external.",
    )
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = Field(
        None, description="Branch, tag or commit of the model on the hub."
    )
    modality: Literal["text", "image", "audio", "other"] | None = Field(
        None, description="What an external encoder reads. Default `text`."
    )
    options: TextOptions | ImageOptions | RemoteOptions | None = Field(
        None, validate_default=True, description="Options of the kind. External encoders have none."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("kind")
        if kind is None or (value in (None, {}) and kind != EncoderKind.openai):
            return None
        if kind == EncoderKind.external:
            raise InvalidRequest(
                "`options` does not apply to `kind: external`. Remove it, or change `kind`.",
                field="options",
            )
        try:
            return OPTIONS_BY_KIND[kind].model_validate({} if value is None else value)
        except ValidationError as error:
            raise located(error, OPTIONS_BY_KIND[kind], below=("options",)) from None

    @model_validator(mode="after")
    def _check_kind(self) -> NewEncoder:
        is_external = self.kind == EncoderKind.external
        for field in ("model", "revision") if is_external else ("dim",):
            if getattr(self, field) is not None:
                raise InvalidRequest(
                    f"An encoder of kind `{self.kind}` takes no `{field}`. Remove it, or name "
                    "another `kind`: external, sentence-transformers, timm or openai.",
                    field=field,
                )
        needed = "dim" if is_external else "model"
        if getattr(self, needed) is None:
            raise InvalidRequest(
                f"An encoder of kind `{self.kind}` needs `{needed}`. Add it.", field=needed
            )
        return self


class Encoder(RowModel):
    """A registered encoder."""

    name: str = Field(description="Name of the encoder.")
    kind: EncoderKind = Field(description="Who runs it.")
    dim: int = Field(description="Dimension of its vectors.")
    model: str | None = Field(description="Name of the model. Null for an external encoder.")
    revision: str | None = Field(description="Revision from the request.")
    modality: str = Field(description="What it reads: `text`, `image`, `audio` or `other`.")
    options: dict[str, Any] = Field(description="Options from the request.")
    identity: ModelIdentity | None = Field(
        description="What its vectors depend on. Null for an external encoder."
    )
    last_check: EncoderCheck | None = Field(
        description="Whether it still makes the vectors of its anchors, by the last check. "
        "Null before the first one."
    )
    created_at: datetime = Field(description="When it was registered.")


class EncoderPage(BaseModel):
    """Encoders in the order of their names."""

    encoders: list[Encoder] = Field(description="One page of encoders.")


class CheckRequest(InputsBody):
    """Inputs, and the vectors that the client's copy of the encoder made of them; or nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": ["I lost my card."], "vectors": [[0.1, -0.2, 0.3]]}]
        }
    )

    vectors: Vectors = Field(None, description="One vector for each input, in the same order.")
