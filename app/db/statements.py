"""Statements that change rows without loading them into the session."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.orm import Session


def changed_rows(session: Session, statement: Update | Delete) -> int:
    """Run the statement and return the number of rows it changed."""
    options = {"synchronize_session": False}
    done = cast("CursorResult[Any]", session.execute(statement, execution_options=options))
    return done.rowcount
