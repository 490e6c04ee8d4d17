"""All settings, from the environment (prefix ANCHORAGE_), secret files, or the command line.

Only entry points read them. The descriptions are the text of docs/reference/settings.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

#: where Docker and Kubernetes put secrets: anchorage_database_url holds ANCHORAGE_DATABASE_URL
SECRETS = Path("/run/secrets")


class StoreEntry(BaseModel):
    """An address of a store, and the projects that may use it.

    A text counts as the URL.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(min_length=1)
    projects: tuple[str, ...] = ("default",)
    #: whether searches may send the texts of its rows to a remote encoder
    remote_texts: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"url": value}
        if not isinstance(value, dict | StoreEntry):
            raise ValueError("Expected a URL, or an object with `url` and `projects`")
        return value


class Settings(BaseSettings):
    """How this process runs."""

    model_config = SettingsConfigDict(
        env_prefix="ANCHORAGE_",
        frozen=True,
        env_ignore_empty=True,
        secrets_dir=SECRETS if SECRETS.is_dir() else None,
    )

    host: str = Field(
        "127.0.0.1",
        description="address to listen on; a worker's metrics, which need no key, use it too",
    )
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description=(
            "processes that answer requests on that port; more than one need Redis. They share "
            "torch's threads, and each has its own limits"
        ),
    )
    data_dir: Path = Field(
        Path(".anchorage"),
        description="folder for SQLite and the blobs; the API and its workers share the blobs",
    )
    database_url: str | None = Field(
        None,
        description=(
            "database, as `postgresql://user:password@host/name`; default: SQLite in the data dir"
        ),
    )
    redis_url: str | None = Field(
        None,
        pattern=r"^rediss?://.+",
        description=(
            "shared cache, as `redis://host:6379/0`; default: none, and the API runs jobs itself"
        ),
    )
    redis_prefix: str = Field(
        "anchorage",
        pattern=r"^[A-Za-z0-9._-]{1,50}$",
        description="prefix of every key in Redis, so that several deployments can share one",
    )
    models_dir: Path | None = Field(
        None,
        description="folder whose subfolders may be loaded as encoders, by name",
    )
    heads_dir: Path | None = Field(
        None,
        description="folder of ONNX files that clients may register as heads, by name",
    )
    hub_models: str = Field(
        "",
        description=(
            "hub ids that may be downloaded, separated by commas: "
            "`sentence-transformers/*,timm/*`; default: none, the service is offline"
        ),
    )
    remote_urls: str = Field(
        "",
        description=(
            "base URLs of endpoints with OpenAI's API that may encode, separated by "
            "commas, each with the variable that holds its key: "
            "`https://api.openai.com/v1=OPENAI_API_KEY,http://tei/v1`; default: none"
        ),
    )
    stores: dict[str, StoreEntry] = Field(
        {},
        description=(
            "vector stores that clients may connect, as JSON: a name for each address, as "
            '`{"main": "postgresql://user:password@host/name"}` or '
            '`{"main": {"url": "...", "projects": ["shop"], "remote_texts": true}}`, with the '
            "projects that may use it (without names, only `default`), and whether searches may "
            "send its texts to a remote encoder, as a migration to one does. Default: none"
        ),
    )
    model_bytes: int = Field(
        4 * 2**30,
        ge=0,
        description=(
            "memory of one process for loaded models. It unloads the least recently used first, "
            "and refuses a model that is larger"
        ),
    )

    auth: Literal["auto", "keys", "none"] = Field(
        "auto",
        description=(
            "`keys`: callers need an API key; `none`: they do not; `auto`: they do when the "
            "service listens beyond loopback"
        ),
    )
    allowed_hosts: str = Field(
        "auto",
        description=(
            "accepted values of the Host header, separated by commas, or `*`; `auto`: "
            "loopback's names when the service listens on loopback without keys, otherwise any"
        ),
    )

    max_body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description=(
            "largest request body; a larger one gets 413, before it is read if its length is "
            "declared"
        ),
    )
    max_json: int = Field(
        8 * 1024 * 1024,
        ge=1024,
        description="largest JSON body in bytes; npy has the limit above",
    )
    max_vectors: int = Field(
        16_384,
        ge=1,
        description=(
            "most vectors, inputs or anchors in one request. An answer has at most 2,048 numbers "
            "for each, and 33,554,432 where that is more"
        ),
    )
    max_pool: int = Field(
        200_000,
        ge=2,
        le=2**30,
        description="most items in one pool of a bootstrap, uploaded in pieces or inline",
    )
    max_in_flight: int = Field(
        256,
        ge=1,
        description=(
            "most requests that one process answers at once; one project gets 429 above half of it"
        ),
    )
    max_in_flight_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description=(
            "most bytes of bodies and answers that one process holds at once; "
            "one project gets 429 above half of it"
        ),
    )

    native_texts_a_minute: int = Field(
        6_000,
        ge=0,
        description=(
            "texts of one project that a minute of searches may have embedded for native scores; "
            "above it, searches fall back to translations; 0: no search embeds texts"
        ),
    )

    threads: int | None = Field(
        None,
        ge=1,
        description="torch threads; default: torch's own choice",
    )

    lease_s: float = Field(
        30.0,
        ge=1,
        le=3600,
        description=(
            "seconds without a sign of life, by the database's clock, after which a worker loses "
            "its jobs"
        ),
    )
    devices: str = Field(
        "auto",
        description=(
            "torch devices, with one worker process each: `auto` takes every CUDA device, or "
            "the CPU if there is none; otherwise `cpu`, or `cuda:0,cuda:1`"
        ),
    )
    worker_metrics_port: int | None = Field(
        None,
        ge=1,
        le=65_535,
        description=(
            "port of a worker's Prometheus metrics, and the next ones for further devices; "
            "default: none"
        ),
    )

    drain_s: float = Field(
        0.0,
        ge=0,
        le=300,
        description=(
            "seconds for which a stopping server still accepts requests while /readyz says "
            "`stopping`, for load balancers; it then waits 25 s for requests in flight"
        ),
    )
