"""Fitting translators, and translating with them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from sqlalchemy import text

from app.db import tables
from app.db.cache import Cache
from app.translate import fit as translators
from app.translate import queries
from app.translate import service as apply
from app.translate.maps import FitRequest
from tests.helpers import CONTEXT, PROJECT, another_process, some


def request(method="irp", **options):
    return FitRequest("a", "b", "s", method, options)


def test_a_fit_from_an_encoder_to_itself_travels_between_processes(
    stocked_services, redis_url, redis_prefix
):
    """Source and target are one object then, which must not make them one memory on the way."""
    both = [
        another_process(stocked_services, redis_url=redis_url, redis_prefix=redis_prefix[:50])
        for _ in range(2)
    ]
    same = FitRequest("a", "a", "s", "procrustes", {})
    vectors = some(3, 3)
    answers = [
        apply.apply_map(each, CONTEXT, apply.Translation(same), vectors=vectors) for each in both
    ]
    assert torch.equal(answers[0].output.vectors, answers[1].output.vectors)
    for each in both:
        each.close()


def test_two_processes_that_first_fit_one_translator_at_once_both_answer(
    on_postgres, stock_services
):
    """One has inserted the row and not committed it yet when the other looks for it."""
    services = stock_services(on_postgres)
    source, target = translators.find_pair(services, PROJECT, request())
    content = translators.fit(services, CONTEXT, source, target, request()).id
    with services.db.transaction() as session:
        queries.find(session, PROJECT, content)
        session.query(tables.TranslatorRow).delete()
    cold = replace(services, cache=Cache(0))
    with ThreadPoolExecutor(1) as pool:
        with services.db.transaction() as session:
            ids = {"source_id": source.id, "target_id": target.id, "content": content}
            session.add(tables.TranslatorRow(project=PROJECT, method="irp", options={}, **ids))
            session.flush()
            second = pool.submit(translators.fit, cold, CONTEXT, source, target, request())
            blocked = text(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted "
                "AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
            )
            while not session.scalar(blocked):
                time.sleep(0.01)
        assert second.result().id == content


def test_auto_keeps_the_cosine_for_a_head_that_answers_numbers(stocked_services):
    pair = translators.find_pair(stocked_services, PROJECT, request("auto"))
    for numbers, power in ((False, 0.25), (True, 0.0)):
        asked = replace(request("auto"), numbers=numbers)
        method, options = translators.choose_method(*pair, asked)
        assert (method, options["decode_power"]) == ("graded", power)
