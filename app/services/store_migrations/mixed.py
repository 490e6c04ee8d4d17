"""Migrations of a store that holds rows of several encoders.

Each row is translated by the map of the encoder that it looks like, and rows of the target stay as
they are. A row that looks like none of them, or like two, is never translated: the target embeds
its text where it can, and otherwise the migration names the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.errors import DimensionMismatch, InvalidRequest, WrongSpace
from app.maths.anchors.row_owners import (
    FEWEST_OWNED,
    OwnerErrors,
    RowOwners,
    fit_row_owners,
    most_owners,
)
from app.services.anchors import made_pairs, spaces
from app.services.context import Services
from app.services.encoders import native_vectors
from app.services.store_migrations.plan_contents import MigrationTask
from app.services.stores import native_texts
from app.services.translators.translators import FitRequest
from app.storage import tables
from app.storage.queries.native_vectors import StoreRowId
from app.stores.base import StoreId, StoreVectors

if TYPE_CHECKING:
    from app.services.store_migrations.context import MigrationContext

#: largest share of undecided rows in a sample: beyond it, the anchors do not fit the store
MAX_UNDECIDED = 0.5

#: ids of undecided rows that a migration names
MAX_UNDECIDED_IDS = 1_000


@dataclass(frozen=True, eq=False)
class Assignment:
    """The encoders of a store's rows, and which of them a sample's rows look like.

    names   the sources, and the target if it has the store's dimension
    errors  of each name, on held-out anchors
    found   (n,) the place of each row of the sample; UNDECIDED for none
    """

    names: list[str]
    owners: RowOwners
    errors: list[OwnerErrors]
    sample: StoreVectors
    found: NDArray[np.int64]

    @property
    def undecided(self) -> float:
        return float((self.found < 0).mean())

    def rows_of(self, place: int) -> Tensor | None:
        """Return the sample's rows of an encoder; None without one."""
        rows = self.sample[self.found == place]
        return torch.from_numpy(rows) if len(rows) else None


def requests_of(task: MigrationTask, store: tables.StoreRow, first: FitRequest) -> list[FitRequest]:
    """Return the fit of each source: the store's encoder first, unless it is the target.

    first  the fit from the store's encoder
    Raises InvalidRequest where `sources` names no other encoder, or one of them twice.
    """
    own = store.encoder.name
    named = {each.encoder: each.anchor_set or task.anchor_set for each in task.sources}
    if len(named) < len(task.sources):
        raise InvalidRequest("`sources` names an encoder twice. Name each once.", field="sources")
    others = {name: named[name] for name in named if name not in (own, task.target)}
    if task.sources and named.keys() <= {own}:
        raise InvalidRequest(
            f"`sources` names only the store's own encoder {own!r}. Name the other encoders whose "
            "rows it holds, or leave `sources` out.",
            field="sources",
        )
    if task.target != own:
        others = {own: named.get(own, task.anchor_set), **others}
    if not others:
        raise InvalidRequest(
            f"The store {store.name!r} already has vectors of {own!r}. Name another `target`; or, "
            "if rows of other encoders are among them, name these in `sources`.",
            field="target",
        )
    return [replace(first, source=name, anchor_set=of) for name, of in others.items()]


def spaces_of(
    store: tables.StoreRow, pairs: Sequence[tuple[tables.SpaceRow, tables.SpaceRow]]
) -> list[tables.SpaceRow]:
    """Return the spaces of the sources, and of the target if the store can hold its rows.

    pairs  of each source with the target
    Raises DimensionMismatch, and InvalidRequest for anchors that cannot tell encoders apart.
    """
    dim, target = store.encoder.dim, pairs[0][1]
    found = [source for source, _ in pairs]
    for space in found:
        if space.encoder.dim != dim:
            raise DimensionMismatch(
                f"The encoder {space.encoder.name!r} has {space.encoder.dim} dimensions, and the "
                f"vectors of the store have {dim}: it can hold none of its rows. Remove it.",
                field="sources",
            )
    if target.encoder.dim == dim:
        found.append(target)
    if len(found) > (most := most_owners(dim)):
        raise InvalidRequest(
            f"To distinguish rows of {len(found)} encoders of {dim:,} dimensions needs too much "
            f"memory: the limit is {most}, with the store's encoder and a target of its dimension. "
            "Name fewer, or embed the foreign rows again.",
            field="sources",
        )
    for space in found:
        made = made_pairs.estimate_of(space.anchor_set) is not None
        if made or space.anchor_set.size < FEWEST_OWNED:
            raise InvalidRequest(
                f"The anchor set {space.anchor_set.name!r} cannot tell encoders apart: it needs "
                f"{FEWEST_OWNED} anchors that {space.encoder.name!r} embedded itself.",
                field="sources",
            )
    return found


def assign(
    services: Services, project: str, known: Sequence[tables.SpaceRow], sample: StoreVectors
) -> Assignment:
    """Learn to tell the encoders of these spaces apart, and assign a sample (n, d).

    Raises Overloaded.
    """
    anchors = [spaces.raw_anchors(services, each) for each in known]
    with services.fitting(project):
        owners, errors = fit_row_owners(anchors)
        found = owners.find(torch.from_numpy(sample)).numpy()
    return Assignment([each.encoder.name for each in known], owners, errors, sample, found)


def refuse_undecided(assignment: Assignment, store: str) -> None:
    """Raises WrongSpace where most of the sample looks like none of the encoders, or like two."""
    if assignment.undecided <= MAX_UNDECIDED:
        return
    recognised = ", ".join(
        f"{name!r} ({each.right:.0%} of its held-out anchors were recognised)"
        for name, each in zip(assignment.names, assignment.errors, strict=True)
    )
    raise WrongSpace(
        f"{assignment.undecided:.0%} of {len(assignment.found):,} sampled rows of {store!r} look "
        f"like none of {recognised}, or like two. Name the other encoders in `sources`, add "
        "anchors of the store's items, or send `force_space: true` to leave such rows out.",
        field="sources",
    )


def describe(
    services: Services,
    store: tables.StoreRow,
    target: tables.EncoderRow,
    requests: Sequence[FitRequest],
    assignment: Assignment,
    estimates: Sequence[Mapping[str, Any] | None],
) -> dict[str, Any]:
    """Return the members of a plan about its sources: how sure the assignment is, and the maps."""
    sources = []
    for place, (name, errors) in enumerate(zip(assignment.names, assignment.errors, strict=True)):
        copied = place >= len(requests)
        sources.append(
            {
                "encoder": name,
                "anchor_set": None if copied else requests[place].anchor_set,
                "share": round(float((assignment.found == place).mean()), 4),
                "right": round(errors.right, 4),
                "wrong_at_most": round(errors.wrong_at_most, 4),
                "estimate": None if copied else estimates[place],
            }
        )
    embeds = native_texts.native_count(services, store, target, None, None) > 0
    return {
        "sources": sources,
        "undecided": {"share": round(assignment.undecided, 4), "embed": embeds},
    }


def embed_undecided(
    move: MigrationContext, ids: Sequence[StoreId], places: Sequence[int]
) -> dict[int, StoreVectors]:
    """Return the target's vectors of undecided rows by their places, within the budget."""
    if not move.row.plan.get("undecided", {}).get("embed") or not len(places):
        return {}
    wanted = [ids[place] for place in places]
    rows = [StoreRowId.of(move.row.store_id, each) for each in wanted]
    made, _ = native_vectors.find_or_embed(
        move.services, move.context, move.row.target, move.store.texts(wanted), rows
    )
    found = zip(places, made, strict=True)
    return {place: each.numpy() for place, each in found if each is not None}


def name_undecided(found: Mapping[str, Any], noted: dict[StoreId, bool]) -> dict[str, Any]:
    """Return `found` with undecided rows in addition, and without decided ones, and empty `noted`.

    noted  whether each row is undecided
    """
    before = found.get("undecided") or {"rows": 0, "ids": []}
    named = set(before["ids"])
    new = [each for each, lost in noted.items() if lost and each not in named]
    left = [each for each in before["ids"] if noted.get(each, True)]
    noted.clear()
    rows = before["rows"] + len(new) - (len(named) - len(left))
    others = {name: each for name, each in found.items() if name != "undecided"}
    if not rows:
        return others
    return {**others, "undecided": {"rows": rows, "ids": [*left, *new][:MAX_UNDECIDED_IDS]}}
