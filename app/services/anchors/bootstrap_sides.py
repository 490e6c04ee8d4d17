"""The source and the target of a bootstrap: their encoders and pools, checked and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidRequest
from app.services.anchors import pools
from app.services.context import Services
from app.services.request_context import RequestContext
from app.storage import tables
from app.storage.queries import resources


@dataclass(frozen=True, eq=False)
class BootstrapSides:
    """The encoders and the checked pools of source and target."""

    encoders: list[tables.EncoderRow]
    pools: list[pools.PoolSide]

    def arguments(self, services: Services, context: RequestContext) -> dict[str, Any]:
        """Store the pools, and return the job's arguments about both sides. Raises as
        `pools.store_side`.
        """
        return {
            "made_by": {row.name: row.id for row in self.encoders},
            "blobs": {
                name: pools.store_side(services, context, side)
                for name, side in zip(("source_pool", "target_pool"), self.pools, strict=True)
            },
        }


def check_sides(
    services: Services,
    context: RequestContext,
    *,
    name: str,
    encoders: Mapping[str, str],
    inputs: tuple[pools.PoolInput, pools.PoolInput],
) -> BootstrapSides:
    """Check both sides of a bootstrap.

    name      the anchor set, which must be free
    encoders  the names of `source` and `target`

    Raises InvalidRequest, NameTaken, EncoderNotFound, and the errors of `pools.check_side`.
    """
    if encoders["source"] == encoders["target"]:
        raise InvalidRequest("`source` and `target` must be different encoders.", field="target")
    with services.db.transaction() as session:
        resources.require_free(session, tables.AnchorSetRow, context.project, name)
        rows = [
            resources.by_name(session, tables.EncoderRow, context.project, encoder, field=field)
            for field, encoder in encoders.items()
        ]
    sides = [
        pools.check_side(services, context.project, row, side)
        for row, side in zip(rows, inputs, strict=True)
    ]
    return BootstrapSides(rows, sides)
