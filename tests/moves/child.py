"""A process that takes a step and kills itself on the way.

python -m tests.moves.child DATA_DIR DATABASE_URL STORE_URL before|after STEP ID
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.moves import steps
from app.moves.context import open_migration
from app.settings import Settings, StoreEntry
from app.wiring import make_services
from tests.helpers import CONTEXT


def main(folder: str, database: str, store: str, when: str, *more: str) -> None:
    settings = Settings(
        data_dir=Path(folder),
        database_url=database,
        stores={"main": StoreEntry(url=store, projects=(CONTEXT.project,))},
    )
    services = make_services(settings)
    step, migration_id = more
    row = steps.find_migration(services, CONTEXT.project, migration_id).row
    kind = type(open_migration(services, row).migration)
    setattr(kind, step, killed(getattr(kind, step), after=when == "after"))
    getattr(steps, step)(services, CONTEXT, migration_id)


def killed(act: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """The step of the store, and a SIGKILL before or after it."""

    def die(*arguments: Any) -> None:
        if after:
            act(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return die


if __name__ == "__main__":
    main(*sys.argv[1:])
