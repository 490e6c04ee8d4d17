"""The console: pages for browsers, which show what to do with each store."""

from __future__ import annotations

from fastapi import FastAPI

from app.console import assets, migration_page, overview, pages, sign_in, stores_page

#: every module with pages; each has a `router`
PAGES = (sign_in, assets, overview, migration_page, stores_page)


def install(app: FastAPI) -> None:
    """Adds the pages, and shows problems below /console as pages."""
    app.state.problem_page = pages.problem_page
    for page in PAGES:
        app.include_router(page.router, include_in_schema=False)
