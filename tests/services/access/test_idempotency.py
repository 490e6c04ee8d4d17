"""What accompanies a write, on both databases: it happens once however often it is asked for, and
leaves an audit row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch
from sqlalchemy import func, select

from app.errors import Conflict, IdempotencyKeyReused, NameTaken, RequestInProgress, ResourceGone
from app.heads.linear import make_linear_head
from app.services.access import api_keys, audit, idempotency
from app.services.anchors import anchor_sets
from app.services.context import Services
from app.services.encoders import encoders
from app.services.heads import heads
from app.services.jobs import runner, submission
from app.services.jobs.leases import Leases
from app.services.request_context import Repeat, RequestContext
from app.services.translators import translators
from app.storage import tables
from app.storage.queries import access
from app.types import JobKind, Scope
from tests.services.helpers import CONTEXT, ON_EACH_DATABASE, PROJECT, create_encoder

KEY_ID = "k" * 32


#: the context of one request, and its Idempotency-Key
REQUEST = RequestContext(PROJECT, KEY_ID, "request 1")
REPEAT = Repeat("key", "f")


def create(
    services: Services, context: RequestContext = REQUEST, name: str = "e"
) -> tables.EncoderRow:
    return create_encoder(services, name, 3, context)


def ask(
    services: Services,
    make: Callable[[RequestContext], tables.EncoderRow] | None = None,
    repeat: Repeat | None = REPEAT,
    project: str = PROJECT,
) -> tables.EncoderRow:
    """One try of `POST /encoders` with an Idempotency-Key."""
    return idempotency.idempotent(
        services,
        replace(REQUEST, project=project),
        repeat,
        tables.EncoderRow,
        make or (lambda context: create(services, context)),
    )


def submit_bootstrap(services: Services, context: RequestContext) -> tables.JobRow:
    return submission.submit_job(services, context, JobKind.bootstrap, {})


def submit(services: Services) -> tables.JobRow:
    """The same for a job, which no name protects from being made twice."""
    return idempotency.idempotent(
        services, REQUEST, REPEAT, tables.JobRow, partial(submit_bootstrap, services)
    )


def count(services: Services, table: type[tables.Owned]) -> int:
    with services.db.transaction() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def audit_rows(services: Services) -> list[tuple[str, str, str]]:
    with services.db.transaction() as session:
        return [
            (row.action, row.resource, row.name)
            for row in access.audit(session, PROJECT, before=None, limit=99)
        ]


def end_claims(services: Services) -> None:
    """As if every try at work had been silent for longer than a claim holds."""
    with services.db.transaction() as session:
        for row in session.scalars(select(tables.IdempotentRequestRow)):
            row.lease_until = tables.now() - timedelta(seconds=1)


# --- once -----------------------------------------------------------------------------------------


def test_the_same_request_twice_makes_one_row_and_answers_alike(services):
    first, second = ask(services), ask(services)
    assert (first.id, first.name, first.created_at) == (second.id, second.name, second.created_at)
    assert count(services, tables.EncoderRow) == 1
    assert audit_rows(services) == [("create", "encoder", "e")]


def test_another_request_under_the_same_key_is_refused(services):
    ask(services)
    with pytest.raises(IdempotencyKeyReused):
        ask(services, lambda context: create(services, context, "other"), Repeat("key", "g"))
    assert count(services, tables.EncoderRow) == 1


def test_requests_without_a_key_are_all_carried_out(services):
    for name in "ab":
        ask(services, lambda context, name=name: create(services, context, name), None)
    assert count(services, tables.EncoderRow) == 2
    assert count(services, tables.IdempotentRequestRow) == 0


@ON_EACH_DATABASE
def test_many_tries_at_once_make_one_row(services):
    together = threading.Barrier(6)

    def attempt(_: int) -> str | None:
        together.wait()
        try:
            return submit(services).id
        except RequestInProgress as error:
            return None if error.retry_after_s else "when?"

    with ThreadPoolExecutor(6) as pool:
        ids = set(pool.map(attempt, range(6))) - {None}
    assert len(ids) == 1
    assert count(services, tables.JobRow) == 1
    assert submit(services).id in ids


def test_a_second_try_is_told_to_wait_while_the_first_is_at_work(services):
    def make(context: RequestContext) -> tables.EncoderRow:
        with pytest.raises(RequestInProgress):
            ask(services)
        return create(services, context)

    ask(services, make)
    assert count(services, tables.EncoderRow) == 1


class Killed(BaseException):
    """A process that dies runs none of what is written for exceptions."""


def test_an_answer_lost_with_its_process_is_recalled(services):
    def make(context: RequestContext) -> tables.EncoderRow:
        create(services, context)
        raise Killed

    with pytest.raises(Killed):
        ask(services, make)
    assert ask(services, lambda _: pytest.fail("it was made")).name == "e"
    assert audit_rows(services) == [("create", "encoder", "e")]


def test_a_try_lost_before_its_effect_is_taken_over_once_its_claim_ended(services):
    def make(context: RequestContext) -> tables.EncoderRow:
        raise Killed

    with pytest.raises(Killed):
        ask(services, make)
    with pytest.raises(RequestInProgress):
        ask(services)
    end_claims(services)
    assert ask(services).name == "e"
    assert ask(services, lambda _: pytest.fail("it was made")).name == "e"


@ON_EACH_DATABASE
def test_a_try_whose_claim_was_taken_over_cannot_commit(services):
    """However late the first one wakes up: there is one job, and the second one's answer stands."""
    second = []

    def make(context: RequestContext) -> tables.JobRow:
        end_claims(services)
        second.append(submit(services))
        return submit_bootstrap(services, context)

    with pytest.raises(Conflict):
        idempotency.idempotent(services, REQUEST, REPEAT, tables.JobRow, make)
    assert count(services, tables.JobRow) == 1
    assert audit_rows(services) == [("create", "job", second[0].id)]
    assert submit(services).id == second[0].id


@ON_EACH_DATABASE
def test_of_two_tries_that_commit_at_once_one_does(services):
    together, taken = threading.Barrier(2), threading.Event()

    def attempt(first: bool) -> str | None:
        def make(context: RequestContext) -> tables.JobRow:
            taken.set()
            together.wait(30)
            return submit_bootstrap(services, context)

        if not first:
            assert taken.wait(30)
            end_claims(services)
        try:
            return idempotency.idempotent(services, REQUEST, REPEAT, tables.JobRow, make).id
        except Conflict:
            return None

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(attempt, (True, False))
    assert first is None
    assert count(services, tables.JobRow) == 1
    assert submit(services).id == second


def test_a_request_that_made_nothing_may_be_tried_again_at_once(services):
    create(services, name="taken")
    with pytest.raises(NameTaken):
        ask(services, lambda context: create(services, context, "taken"))
    assert count(services, tables.IdempotentRequestRow) == 0
    assert ask(services).name == "e"


def test_what_was_found_made_already_is_recalled_too(services):
    row = create(services)
    assert ask(services, lambda _: row).id == row.id
    assert ask(services, lambda _: pytest.fail("it was found")).id == row.id


def test_what_was_deleted_since_is_gone(services):
    ask(services)
    encoders.delete_encoder(services, CONTEXT, "e")
    with pytest.raises(ResourceGone):
        ask(services)
    assert ask(services, repeat=Repeat("new", "f")).name == "e"


# --- note -----------------------------------------------------------------------------------------


def test_every_write_is_noted_with_its_key_and_origin_and_in_order(stocked):
    services = stocked
    three = torch.eye(3)
    pair = translators.FitRequest("a", "b", "s", "procrustes", {})
    before = len(audit_rows(services))
    create(services, name="c")
    anchor_sets.add_embeddings(
        services, REQUEST, anchor_set="s", encoder="c", vectors=torch.randn(12, 3)
    )
    create(services, name="d")
    encoders.delete_encoder(services, REQUEST, "d")
    anchor_sets.create_anchor_set(services, REQUEST, name="t", embeddings={"a": torch.randn(5, 3)})
    anchor_sets.delete_anchor_set(services, REQUEST, "t")
    new = heads.HeadDefinition("h", "linear", "a", None, list("xyz"))
    heads.create_head(services, REQUEST, new, lambda dim: make_linear_head(three, None, dim=dim))
    heads.delete_head(services, REQUEST, "h")
    fitted = translators.fit(
        services, REQUEST, *translators.find_pair(services, PROJECT, pair), pair
    )
    job = submission.submit_job(services, REQUEST, JobKind.bootstrap, {})
    submission.cancel_job(services, REQUEST, job.id)
    key, _ = api_keys.create_key(services, REQUEST, name="k", scopes=[Scope.read])
    rotated, _ = api_keys.rotate_key(services, REQUEST, key.id, grace_s=60)
    api_keys.revoke_key(services, REQUEST, rotated.id)
    noted = audit_rows(services)
    assert list(reversed(noted[: len(noted) - before])) == [
        ("create", "encoder", "c"),
        ("embed", "anchor-set", "s"),
        ("create", "encoder", "d"),
        ("delete", "encoder", "d"),
        ("create", "anchor-set", "t"),
        ("delete", "anchor-set", "t"),
        ("create", "head", "h"),
        ("delete", "head", "h"),
        ("create", "translator", fitted.id),
        ("create", "job", job.id),
        ("cancel", "job", job.id),
        ("create", "api-key", key.id),
        ("rotate", "api-key", key.id),
        ("revoke", "api-key", rotated.id),
    ]
    with services.db.transaction() as session:
        rows = access.audit(session, PROJECT, before=None, limit=len(noted) - before)
    assert {(row.key_id, row.origin) for row in rows} == {(KEY_ID, "request 1")}


def test_what_a_job_makes_is_noted_in_the_jobs_name(services):
    job = submission.submit_job(services, CONTEXT, JobKind.bootstrap, {})

    def run(services, job, progress):
        context = RequestContext.of_job(job)
        return runner.JobResult(
            {},
            lambda session: audit.record_audit(session, context, "create", "anchor-set", "made"),
        )

    runner.run_next(services, {JobKind.bootstrap: run}, Leases(services))
    with services.db.transaction() as session:
        row = access.audit(session, PROJECT, before=None, limit=1)[0]
    assert (row.name, row.origin, row.key_id) == ("made", f"job {job.id}", None)
