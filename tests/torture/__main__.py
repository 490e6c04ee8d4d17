"""Torture migrations of real stores, and count what was lost: nothing.

    python -m tests.torture [--minutes 10] [--seed 1] [--store pgvector] [--fill embed] [--pooler]

Each store has its share of the time. The last lines are a table of counts. The exit status is 1
after any fault. A seed repeats what clients and saboteurs draw, and not the moments.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.torture.stage import KINDS, torture_kind
from tests.torture.tally import Tally

#: of the time: clients of pgvector may do most
SHARES = {"pgvector": 6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=KINDS, action="append", help="all without it")
    parser.add_argument("--fill", choices=("translate", "embed"), default="translate")
    parser.add_argument("--pooler", action="store_true", help="between service and PostgreSQL")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    tally = Tally()
    shares = {kind: SHARES.get(kind, 1) for kind in options.store or KINDS}
    try:
        for kind, share in shares.items():
            seconds = 60 * options.minutes * share / sum(shares.values())
            how = {"embeds": options.fill == "embed", "pools": options.pooler}
            torture_kind(kind, tally, seed=seed, seconds=seconds, **how)
    finally:
        print(tally.table(), flush=True)
    sys.exit(1 if tally.faults else 0)


if __name__ == "__main__":
    main()
