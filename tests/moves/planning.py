"""Stores whose migration a test plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import torch
from torch import Tensor

from app.anchors import service as anchor_sets
from app.context import Services
from app.db import tables
from app.moves.plan import plan_migration
from app.moves.schemas import NewMigration
from app.stores.handles import StoreAddress
from app.stores.schemas import NewStore
from app.stores.service import create_store
from tests.helpers import CONTEXT, PROJECT, create_encoder, some
from tests.moves.moving import make_table
from tests.pgvector_server import PgvectorServer

OLD_DIM, NEW_DIM, LATENT = 24, 16, 10


def items(count: int, seed: int) -> Tensor:
    """Hidden factors of items, which both encoders see."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, LATENT, generator=torch.Generator().manual_seed(99))
    which = torch.randint(12, (count,), generator=generator)
    return centres[which] + 0.7 * torch.randn(count, LATENT, generator=generator)


def encode(factors: Tensor, dim: int, seed: int) -> Tensor:
    """Unit vectors of an encoder: a linear view of the factors, bent, with noise of its own."""
    view = some(LATENT, dim, seed)
    noise = torch.randn(len(factors), dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize((factors @ view / 3).tanh() + 0.1 * noise, dim=1)


def old(factors: Tensor) -> Tensor:
    return encode(factors, OLD_DIM, 1)


def new(factors: Tensor) -> Tensor:
    return encode(factors, NEW_DIM, 2)


@dataclass(frozen=True)
class Planning:
    """A service with encoders `old` and `new`, the set `pairs`, and the table of a store."""

    services: Services
    server: PgvectorServer
    table: str

    def plan(self, **changes: Any) -> tables.MigrationRow:
        task = NewMigration(**{"store": "rows", "target": "new", "anchor_set": "pairs", **changes})
        return plan_migration(self.services, CONTEXT, task)

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(statement.format(self.table))


def begin_planning(
    services: Services,
    server: PgvectorServer,
    vectors: np.ndarray,
    *,
    anchors: int = 120,
    text_field: str | None = "body",
) -> Planning:
    services.stores.addresses = {"main": StoreAddress(server.url, frozenset({PROJECT}))}
    factors = items(anchors, 5)
    embeddings = {"old": old(factors), "new": new(factors), "other": encode(factors, OLD_DIM, 7)}
    for name, rows in embeddings.items():
        create_encoder(services, name, rows.shape[1])
    anchor_sets.create_anchor_set(services, CONTEXT, name="pairs", embeddings=embeddings)
    table = make_table(server, vectors)
    create_store(
        services,
        CONTEXT,
        NewStore(
            name="rows",
            kind="pgvector",
            address="main",
            collection=table,
            encoder="old",
            vector_field="embedding",
            text_field=text_field,
        ),
    )
    return Planning(services, server, table)
