"""Every setting: from the environment (prefix ANCHORAGE_), a secret's file, or the command line. Read by entry points only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.types import RATE

#: where Docker and Kubernetes put secrets: the file anchorage_database_url holds ANCHORAGE_DATABASE_URL
SECRETS = Path("/run/secrets")


class Settings(BaseSettings):
    """How this process runs."""

    model_config = SettingsConfigDict(
        env_prefix="ANCHORAGE_",
        frozen=True,
        env_ignore_empty=True,
        secrets_dir=SECRETS if SECRETS.is_dir() else None,
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    workers: int = Field(
        1, ge=1, le=64, description="processes that answer requests; more than one need Redis"
    )
    data_dir: Path = Field(Path(".anchorage"), description="where SQLite and the blobs are kept")
    database_url: str | None = Field(
        None, description="SQLAlchemy URL; default: SQLite below data_dir"
    )
    redis_url: str | None = Field(
        None,
        pattern=r"^rediss?://.+",
        description="shared cache, wakes workers; default: none, jobs run in the API's process",
    )
    redis_prefix: str = Field(
        "anchorage",
        pattern=r"^[A-Za-z0-9._-]{1,50}$",
        description="first word of every key in Redis",
    )
    models_dir: Path | None = Field(
        None, description="folder whose subfolders may be loaded as encoders"
    )
    hub_models: str = Field(
        "",
        description="hub ids that may be fetched, separated by commas: sentence-transformers/*,timm/*",
    )
    remote_urls: str = Field(
        "",
        description="base URLs of endpoints that may encode, with the variable that holds the key: https://a/v1=A_KEY,http://b",
    )
    model_bytes: int = Field(
        4 * 2**30,
        ge=0,
        description="memory for loaded models, the least recently used unloaded first",
    )
    encode_cores: int | None = Field(
        None, ge=1, description="cores for encoding; default: as many as torch has threads"
    )

    auth: Literal["auto", "keys", "none"] = Field(
        "auto", description="auto: API keys are asked for beyond loopback"
    )
    allowed_hosts: str = Field(
        "auto",
        description="Host names answered to, separated by commas, or *; auto: loopback's without keys",
    )
    rate_limit: str | None = Field(
        None,
        pattern=RATE,
        description="requests of one key, or of one address without keys: 600/minute",
    )

    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="largest request body")
    max_stream_bytes: int = Field(
        64 * 2**30,
        ge=1024,
        description="largest body that is answered while it comes (stream=true)",
    )
    max_vectors: int = Field(
        16_384, ge=1, description="most vectors, inputs or anchors of one request"
    )
    max_pool: int = Field(
        200_000, ge=2, le=2**30, description="most items in one pool of a bootstrap"
    )
    bootstrap_bytes: int = Field(
        256 * 2**20, ge=2**20, description="memory for a bootstrap's blocks of similarities"
    )
    max_in_flight: int = Field(256, ge=1, description="most requests answered at once")
    max_in_flight_bytes: int = Field(
        256 * 1024 * 1024, ge=1024, description="most bytes of bodies and answers held at once"
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="most connections of one process; default: 4,096, or half of `ulimit -n`",
    )
    max_jobs: int = Field(10_000, ge=1, description="most unfinished jobs")
    max_project_jobs: int = Field(1_000, ge=1, description="most unfinished jobs of one project")

    cache_bytes: int = Field(
        512 * 1024 * 1024, ge=0, description="memory for anchors, decoders and translators"
    )
    threads: int | None = Field(
        None, ge=1, description="torch threads; default: torch's own choice"
    )

    lease_s: float = Field(
        30.0, ge=1, le=3600, description="a worker silent for so long has lost its jobs"
    )
    keep_jobs_days: int = Field(
        30, ge=0, le=36_500, description="how long ended jobs are kept; 0: for ever"
    )
    keep_audit_days: int = Field(
        365, ge=0, le=36_500, description="how long audit rows are kept; 0: for ever"
    )
    keep_translators_days: int = Field(
        90,
        ge=0,
        le=36_500,
        description="how long reports of translators are kept that nobody uses; 0: for ever",
    )
    worker_threads: int = Field(1, ge=1, le=64, description="jobs at once in one worker process")
    devices: str = Field(
        "auto", description="torch devices, a worker process each: auto, cpu, or cuda:0,cuda:1"
    )
    worker_metrics_host: str = Field(
        "127.0.0.1", description="address of a worker's Prometheus metrics"
    )
    worker_metrics_port: int | None = Field(
        None, ge=1, le=65_535, description="port of a worker's Prometheus metrics"
    )

    drain_s: float = Field(
        0.0,
        ge=0,
        le=300,
        description="how long a stopping server goes on accepting, for load balancers",
    )
    shutdown_s: float = Field(
        25.0, ge=0, le=3600, description="how long it then waits for requests in flight"
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="auto: console on a terminal, else JSON lines"
    )
