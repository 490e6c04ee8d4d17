"""The console: pages for browsers, which show what to do with each pair of encoders."""

from __future__ import annotations

from fastapi import FastAPI

from app.console import (
    assets,
    audit,
    jobs,
    keys,
    map_page,
    migration_page,
    overview,
    pages,
    pairs,
    sign_in,
    spaces,
    stores_page,
    try_page,
)

#: every module with pages; each has a `router`
PAGES = (
    sign_in,
    assets,
    overview,
    migration_page,
    stores_page,
    pairs,
    spaces,
    map_page,
    try_page,
    jobs,
    keys,
    audit,
)


def install(app: FastAPI) -> None:
    """Adds the pages, and shows problems below /console as pages."""
    app.state.problem_page = pages.problem_page
    for page in PAGES:
        app.include_router(page.router, include_in_schema=False)
