"""Verification: it passes a sound store, and sees each kind of damage."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lancedb.index import IvfPq

from app.errors import StoreRefused
from app.moves import steps
from app.moves.context import open_migration
from app.moves.reading import read_store
from app.moves.verify import check_rows, measure_recall
from app.stores.port import Search
from app.stores.registry import open_store
from tests.helpers import CONTEXT, alter
from tests.moves.moving import NEW_DIM, ROWS, Moving, old_vectors, use_a_poor_index
from tests.stores.cases.lancedb import LancedbCase, open_table
from tests.stores.moving import rows


def found(moving: Moving) -> dict[str, Any]:
    job = moving.do("verify")
    assert job.state == "succeeded", job.error
    assert moving.now.row.found["verify"] == job.result
    return job.result


def test_a_sound_store_passes(filled: Moving) -> None:
    result = found(filled)
    assert result["passed"]
    assert (result["rows"]["rows"], result["rows"]["new"]) == (ROWS, ROWS)
    assert result["payloads"]["different"] == 0
    assert (result["sample"]["rows"], result["sample"]["different"]) == (1000, 0)
    assert result["index"]["before"] > 0.9
    assert result["index"]["after"] > 0.9
    assert result["index"]["queries_before"] == result["index"]["queries_after"] == 100


def test_an_index_that_finds_as_little_as_the_old_one_passes(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_a_poor_index(moving, moving.table)
    moving.do("run")
    result = found(moving)
    assert result["index"]["after"] < 0.8
    assert result["passed"]
    assert "and the old index" in result["index"]["detail"]
    monkeypatch.setattr("app.moves.verify.VERIFY_INDEX_S", 1e-9)
    assert found(moving)["index"]["queries_after"] == 10


def test_an_index_that_finds_too_little_is_named_with_what_to_type(filled: Moving) -> None:
    use_a_poor_index(filled, f"anchorage_{filled.id[:8]}_new", probes=None)
    alter(filled.services, filled.now.row, plan={**filled.row.plan, "min_recall": 0.99})
    detail = found(filled)["index"]["detail"]
    assert "(ivfflat) is searched with ivfflat.probes = 10." in detail
    [typed] = re.findall(r"SELECT .*; ALTER DATABASE .* SET ivfflat.probes = 20;", detail)
    try:
        filled.execute(typed)
        assert found(filled)["passed"]
    finally:
        filled.execute(typed.replace("SET", "RESET").replace(" = 20", "").partition("; ")[2])


def test_wrong_vectors_are_found_each_time(filled: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    migration, ids = open_migration(filled.services, filled.now.row).migration, list(range(30))
    right, wrong = migration.read(ids).vectors, np.ones((30, NEW_DIM), dtype=np.float32)
    migration.write(ids, wrong, replace=True)
    result = found(filled)
    assert (result["passed"], result["sample"]["passed"]) == (False, False)
    assert 0 < result["sample"]["different"] <= 30
    assert set(result["sample"]["first"]) <= set(ids)
    monkeypatch.setattr("app.moves.verify.VERIFIED_ROWS", 1)
    assert found(filled)["sample"]["different"] >= 20
    migration.write(ids, right, replace=True)
    assert found(filled)["passed"]


def test_rows_without_a_new_vector_are_found(filled: Moving) -> None:
    filled.execute(f"DELETE FROM anchorage_{filled.id[:8]}_new WHERE id IN (1, 2, 3)")  # noqa: S608
    result = found(filled)
    assert (result["rows"]["passed"], result["rows"]["new"]) == (False, ROWS - 3)
    for words in ("differ by 3 rows", "`sync`", "abandon"):
        assert words in result["rows"]["detail"]


def test_writes_of_clients_are_told_from_damage(filled: Moving) -> None:
    filled.insert(5, old_vectors(3, 91))
    filled.insert(ROWS, old_vectors(10, 92))
    filled.execute("UPDATE {} SET body = 'changed' WHERE id = 20")
    result = found(filled)
    assert result["passed"], result
    assert result["payloads"]["different"] == 0
    assert result["rows"]["new"] == ROWS + 10
    filled.insert(ROWS + 10, old_vectors(5, 93))  # as while the rows are counted: few, so no damage
    assert check_rows(open_migration(filled.services, filled.now.row), filled.now.row).passed


def test_two_empty_sides_do_not_pass(filled: Moving) -> None:
    page = open_migration(filled.services, filled.now.row).store.sample(30)
    filled.execute("DELETE FROM {} WHERE id > 4")
    found(filled)
    move = open_migration(filled.services, filled.now.row)
    # searches that hide the sampled rows, an exact one too
    assert max(measure_recall(move, page.ids, page.vectors, "old", print)) <= 0.5
    filled.execute("TRUNCATE {}")
    result = found(filled)
    assert (result["rows"]["passed"], result["rows"]["before"]) == (False, ROWS)
    assert (result["sample"]["passed"], result["sample"]["rows"]) == (False, 0)
    assert not result["passed"]


def test_rows_that_no_trigger_saw_are_found_and_copied_again(filled: Moving) -> None:
    triggers = ("anchorage_capture_update", "anchorage_capture_rows")  # of texts, and of the rest
    for each in triggers:
        filled.execute(f"ALTER TABLE {{}} DISABLE TRIGGER {each}")
    filled.execute("UPDATE {} SET body = 'changed' WHERE id < 20")
    for each in triggers:
        filled.execute(f"ALTER TABLE {{}} ENABLE ALWAYS TRIGGER {each}")
    result = found(filled)
    assert (result["payloads"]["passed"], result["payloads"]["different"]) == (False, 20)
    assert not result["passed"]
    assert found(filled)["passed"]


def test_a_store_is_verified_after_a_cutover_and_a_rollback_too(verified: Moving) -> None:
    steps.take_step(verified.services, CONTEXT, verified.id, "cutover")
    new = verified.maps.forward.map_rows(old_vectors(4, 93)).vectors
    verified.insert(ROWS, new)
    assert found(verified)["passed"]
    store = open_migration(verified.services, verified.now.row).store
    with pytest.raises(StoreRefused, match="in the service that began it"):
        read_store(store, batch=9, text_field=None, dim=NEW_DIM)
    steps.take_step(verified.services, CONTEXT, verified.id, "rollback")
    assert found(verified)["passed"]


def test_rough_scores_of_a_quantised_index_are_not_compared(tmp_path: Path) -> None:
    case = LancedbCase()
    location = case.fill(tmp_path, rows(case, 400))
    index = IvfPq(distance_type="cosine", num_partitions=1, num_sub_vectors=3)
    open_table(location).create_index("vector", config=index, replace=True)
    store = open_store(location)
    page = store.sample(30)
    recalls = measure_recall(SimpleNamespace(store=store), page.ids, page.vectors, "old", print)
    for own, query, recall in zip(page.ids, page.vectors, recalls, strict=True):
        right, rough = (
            [
                each
                for each in store.search(Search(query[None], 11, exact=exact))[0].ids
                if each != own
            ]
            for exact in (True, False)
        )
        assert recall == pytest.approx(len({*right[:10]} & {*rough[:10]}) / 10)
    assert 0.3 < np.mean(recalls) < 1
    store.close()
