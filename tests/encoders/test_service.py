"""Deleting what encoders made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text

from app.anchors import service as anchor_sets
from app.errors import NotFound
from tests.helpers import CONTEXT, ON_EACH_DATABASE, audited


@ON_EACH_DATABASE
def test_of_many_deletions_of_one_moment_one_deletes_and_is_written_down(stocked_services):
    def delete(_: int) -> bool:
        try:
            anchor_sets.delete_anchor_set(stocked_services, CONTEXT, "s")
        except NotFound:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(delete, range(16))) == 1
    writes = audited(stocked_services)
    assert [row.action for row in writes if row.resource == "anchor-set"].count("delete") == 1
    with stocked_services.db.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM spaces")) == 0
