"""A set that is deleted and made again with other content: each answer is by one of the two
versions, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from sqlalchemy import event

from app.anchors import service as anchor_sets
from app.context import RequestContext, Services
from app.db import cache
from app.encoders import service as encoders
from app.errors import Conflict, NotFound
from app.heads import service as heads
from app.heads.schemas import NewHead, StitchRequest
from app.translate import service as apply
from app.translate.maps import FitRequest
from tests.helpers import PROJECT, another_process, create_encoder

VECTORS = torch.randn(3, 4, generator=torch.Generator().manual_seed(9))
Ask = Callable[[Services, str], torch.Tensor]
TRANSLATION = FitRequest("a", "b", "s", "graded", {})


@pytest.fixture
def other(services: Services, redis_url, redis_prefix) -> Iterator[Services]:
    """Another process of the same deployment."""
    made = another_process(services, redis_url=redis_url, redis_prefix=redis_prefix[:50])
    yield made
    made.close()


@pytest.fixture
def reader(other, services) -> Iterator[Services]:
    """One of two such processes: the other one changes things."""
    made = another_process(services, redis_url="redis://127.0.0.1:1/0")
    yield made
    made.close()


def make(services: Services, project: str, version: int) -> None:
    """Encoders a (4) and b (3), the set s, and the head h of b: all names are the same in each
    version.
    """
    draw = torch.Generator().manual_seed(version)
    for name, dim in (("a", 4), ("b", 3)):
        create_encoder(services, name, dim, RequestContext(project))
    embeddings = {"a": torch.randn(12, 4, generator=draw), "b": torch.randn(12, 3, generator=draw)}
    anchor_sets.create_anchor_set(
        services, RequestContext(project), name="s", embeddings=embeddings
    )
    numbers = {"kind": "numbers"}
    weight = torch.randn(2, 3, generator=draw)
    new = NewHead(name="h", encoder="b", output=numbers, weight=weight)
    heads.create_head(services, RequestContext(project), new)


def delete(services: Services, project: str) -> None:
    heads.delete_head(services, RequestContext(project), "h")
    anchor_sets.delete_anchor_set(services, RequestContext(project), "s")
    for name in ("a", "b"):
        encoders.delete_encoder(services, RequestContext(project), name)


def both_answers(ask: Ask, services: Services) -> list[torch.Tensor]:
    """The answers by the two versions, each of which stays in a project of its own."""
    for version in (1, 2):
        make(services, f"quiet {version}", version)
    return [ask(services, f"quiet {version}") for version in (1, 2)]


def translated(services: Services, project: str) -> torch.Tensor:
    return apply.apply_map(
        services, RequestContext(project), apply.Translation(TRANSLATION), vectors=VECTORS
    ).output.vectors


def stitched(services: Services, project: str) -> torch.Tensor:
    request = StitchRequest(encoder="a", head="h", anchor_set="s", vectors=VECTORS, method="graded")
    return heads.stitch(services, RequestContext(project), request, None).values


@contextmanager
def before_statement(
    services: Services, number: int, change: Callable[[], None]
) -> Iterator[list[int]]:
    """Call `change` once, before the given statement or the first after it that follows no write
    of its transaction.
    """
    seen: list[int] = []
    written = False

    def count(connection, cursor, statement, parameters, context, executemany) -> None:
        nonlocal written
        written = written or not statement.startswith("SELECT")
        seen.append(len(seen))
        if len(seen) - 1 >= number and not written and not changed:
            changed.append(True)
            change()

    def begin(connection) -> None:
        nonlocal written
        written = False

    changed: list[bool] = []
    event.listen(services.db.engine, "before_cursor_execute", count)
    event.listen(services.db.engine, "begin", begin)
    try:
        yield changed
    finally:
        event.remove(services.db.engine, "before_cursor_execute", count)
        event.remove(services.db.engine, "begin", begin)


@pytest.mark.parametrize("ask", [translated, stitched])
def test_whenever_all_is_made_anew_during_a_request_its_answer_is_by_one_version(
    reader, other, monkeypatch, ask
):
    """By another process, before each of the request's statements in turn."""
    monkeypatch.setattr(cache, "MEMORY_S", 3600.0)
    right = both_answers(ask, other)
    answered = []
    for number in range(100):
        make(other, PROJECT, 1)
        reader.names.forget()
        found = None

        def change() -> None:
            delete(other, PROJECT)
            make(other, PROJECT, 2)

        gone = (Conflict, NotFound)  # AnchorsNotEmbedded is a Conflict
        with before_statement(reader, number, change) as changed, suppress(*gone):
            found = ask(reader, PROJECT)
        if found is not None:
            answered.append([torch.allclose(found, each, atol=1e-5) for each in right])
        delete(other, PROJECT)
        if not changed:
            break
    assert number  # the request has a statement at least
    assert [True, False] in answered
    assert all(any(each) for each in answered), answered


@pytest.mark.parametrize("ask", [translated, stitched])
def test_while_names_are_remembered_an_answer_is_by_one_version(reader, other, monkeypatch, ask):
    """Whichever of the names the other process remembers from before."""
    monkeypatch.setattr(cache, "MEMORY_S", 3600.0)
    right = both_answers(ask, other)
    make(other, PROJECT, 1)
    assert torch.allclose(ask(reader, PROJECT), right[0], atol=1e-5)
    remembered = dict(reader.names._known)
    delete(other, PROJECT)
    make(other, PROJECT, 2)
    for forgotten in remembered:
        reader.names.forget()
        reader.names._known.update(remembered)
        del reader.names._known[forgotten]
        with suppress(Conflict, NotFound):
            found = ask(reader, PROJECT)
            assert any(torch.allclose(found, each, atol=1e-5) for each in right)
