"""Every setting, from the environment (prefix ANCHORAGE_) or the command line. Read by the entry points only."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """How this process runs."""

    model_config = SettingsConfigDict(env_prefix="ANCHORAGE_", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    data_dir: Path = Field(Path(".anchorage"), description="where SQLite and the blobs are kept")
    database_url: str | None = Field(None, description="SQLAlchemy URL; default: SQLite below data_dir")
    models_dir: Path | None = Field(None, description="folder whose subfolders may be loaded as encoders")
    allow_hub: bool = Field(False, description="whether models may be fetched from a hub")
    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="largest request body")
    max_vectors: int = Field(16_384, ge=1, description="most vectors, inputs or anchors of one request")
    max_pool: int = Field(4_096, ge=2, description="most items in one pool of a bootstrap")
    cache_bytes: int = Field(512 * 1024 * 1024, ge=0, description="memory for anchors, decoders and translators")
    threads: int | None = Field(None, ge=1, description="torch threads; default: torch's own choice")
