"""What a migration costs under its limits, in the unit of `price_per_million_tokens`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app.anchors.from_store import USUAL_SIZE
from app.db import tables
from app.types import EncoderKind

#: the code of the note that `max_price` is below the price
PRICE_LIMITED = "price-limited"


def money(value: float) -> str:
    """Return a price to the cent, and below .1 with two digits."""
    digits = 2 if value >= 0.1 or value == 0 else min(8, 1 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"


def of_plan(spent: float, plan: Mapping[str, Any]) -> str:
    """Return the share of the plan's price, as plan, pause and console say it."""
    price = plan["cost"]["price"]
    return f"{spent / max(price, 1e-6):.0%} of the plan's price of {money(price)}"


def with_limits(
    plan: Mapping[str, Any], limits: Mapping[str, Any], target: tables.EncoderRow
) -> dict[str, Any]:
    """Return a plan with these limits, and the price, the seconds and the note that follow."""
    cost, rows_a_second = dict(plan["cost"]), limits["rows_per_second"] or math.inf
    notes = [note for note in plan["notes"] if note["code"] != PRICE_LIMITED]
    if plan["fill"] == "translate":
        cost["seconds"] = round(max(cost["translate_s"], plan["rows"] / rows_a_second), 3)
        return {**plan, "limits": dict(limits), "cost": cost, "notes": notes}
    speed, price = cost["texts_per_second"], None
    cost["seconds"] = None
    if speed is not None:
        requests = limits["concurrency"] if target.kind == EncoderKind.openai else 1
        paced = min(rows_a_second, (limits["texts_per_minute"] or math.inf) / 60)
        cost["seconds"] = round(cost["rows_with_text"] / min(speed * requests, paced), 3)
    if limits["price_per_million_tokens"] is not None:
        price = round(cost["tokens"] * limits["price_per_million_tokens"] / 1e6, 6)
    made = {**plan, "limits": dict(limits), "cost": {**cost, "price": price}, "notes": notes}
    if price is not None and (most := limits["max_price"]) is not None and most < price:
        detail = (
            f"`max_price` is {money(most)}, {of_plan(most, made)}: the run pauses there. Raise "
            "`max_price` to embed all."
        )
        notes.insert(0, {"code": PRICE_LIMITED, "detail": detail})
    return made


def price_of_all(row: tables.MigrationRow) -> float | None:
    """Return what is spent and, by the plan, what the rest costs, rounded up to two digits.

    None without a price.
    """
    price, tokens = row.plan["limits"]["price_per_million_tokens"], row.position.get("tokens", 0)
    if price is None or "tokens" not in row.plan["cost"]:
        return None
    planned, rows = row.plan["cost"]["tokens"], max(1, row.plan["rows"])
    due = planned * min(1.0, row.position.get("rows", 0) / rows)
    # Anchors are embedded before their rows are reached.
    ahead = min(max(0.0, tokens - due), planned * min(1.0, USUAL_SIZE / rows))
    total = (tokens + planned - due - ahead) * price / 1e6
    if total <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(total)) - 1)
    return float(round(math.ceil(total / unit - 1e-9) * unit, 12))
