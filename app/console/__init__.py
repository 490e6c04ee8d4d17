"""The console: pages for browsers, which show what to do with each store."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from app.console import migration_page, overview, pages, sign_in, stores_page
from app.http.admission import ASSETS

#: every module with pages; each has a `router`
PAGES = (sign_in, overview, migration_page, stores_page)


def install(app: FastAPI) -> None:
    """Adds the pages, and shows problems below /console as pages."""
    app.state.problem_page = pages.problem_page
    app.mount(ASSETS, StaticFiles(directory=Path(__file__).with_name("static")))
    for page in PAGES:
        app.include_router(page.router, include_in_schema=False)
