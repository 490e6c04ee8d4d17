"""Generated requests: every answer is one that the OpenAPI document describes, and never a 5xx.

The server uses PostgreSQL, Redis and keys; most other tests use SQLite without keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from anchorage_client import Client
from app.access.service import create_key
from app.context import RequestContext
from app.main import create_app
from app.settings import Settings
from app.types import Scope
from tests.encoders.models.remote.endpoints import FakeEndpoint
from tests.serving import listening

#: requests for an operation with a body; one without gets a third as many
EXAMPLES = 1
LONG_EXAMPLES = 64

CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]

ENCODERS = {"first": 3, "second": 2}
#: body fields that name a resource, and names that exist, so that half of the requests succeed
KNOWN = {
    "source": "first",
    "target": "second",
    "anchor_set": "items",
    "head": "head",
    "encoder": "first",
}
KNOWN |= {"source_pool": "items", "target_pool": "others", "offset": 4}
#: the same of paths
PATHS = {"name": "items", "encoder": "second", "model": "texts"}


@pytest.fixture
def stocked(
    postgres_url: str, redis_url: str, redis_prefix: str, tmp_path: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of a service with one resource of each kind, and a header with an API key."""
    places = {"database_url": postgres_url, "redis_url": redis_url, "redis_prefix": redis_prefix}
    first = [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.2, 0.0, 1.0], [1.0, 1.0, 0.1]]
    with FakeEndpoint() as endpoint:
        own = {"data_dir": tmp_path, "auth": "keys", "remote_urls": endpoint.url}
        app = create_app(Settings(**own, **places))
        with listening(app) as (host, port):
            context, url = RequestContext("default"), f"http://{host}:{port}"
            services = app.state.services
            _, key = create_key(services, context, name="fuzz", scopes=[Scope.admin])
            with Client(url, api_key=key) as client:
                for name, dim in ENCODERS.items():
                    client.encoders.create(name, dim=dim)
                second = [row[:2] for row in first]
                client.anchor_sets.create("items", embeddings={"first": first, "second": second})
                client.pools.create("items", encoder="first", vectors=first)
                client.pools.create("others", encoder="second", vectors=second)
                model = {"kind": "openai", "model": "m", "options": {"url": endpoint.url}}
                client.encoders.create("texts", **model)
                weight = [[1, 0], [0, 1]]
                client.heads.create("head", encoder="second", classes=["no", "yes"], weight=weight)
            yield url, {"Authorization": f"Bearer {key}"}


def steer(value: Any) -> Any:
    """Put known names into every second body, chosen by its content, not at random."""
    if isinstance(value, dict) and len(repr(value)) % 2:
        value = {**value, **{field: name for field, name in KNOWN.items() if field in value}}
        if "model" in value and "kind" not in value:
            value["model"] = "texts"
        for field, dim in (
            ("vectors", 3),
            ("native", 2),
            ("corpus", 2),
            ("relative", 4),
            ("queries", 2),
        ):
            if field in value and len(repr(value)) % 3:
                value[field] = [[0.5] * dim, [0.1 * index for index in range(dim)]]
        if "queries" in value and "candidates" in value:
            one = {"ids": ["a", 1], "vectors": [[0.5] * 3, [0.1, 0.2, 0.3]]}
            value["candidates"] = [one, {"ids": [], "vectors": []}]
    return value


def check_operations(url: str, headers: dict[str, str], examples: int, seed: int) -> Counter[int]:
    """Send generated requests to every operation; returns how often each status was answered."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    sent: Counter[int] = Counter()
    for operation in [found.ok() for found in schema.get_all_operations()]:
        has_body = operation.method.upper() in {"POST", "PUT"}

        @hypothesis_seed(seed)
        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples if has_body else max(1, examples // 3),
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        def check(case: Any) -> None:
            if case.method.upper() in {"POST", "PUT"}:
                case.body = steer(case.body)
            if case.method.upper() != "DELETE" and len(repr(case.path_parameters)) % 2:
                names = case.path_parameters or {}
                exist = {field: name for field, name in PATHS.items() if field in names}
                case.path_parameters = {**names, **exist}
            response = case.call(headers=headers)
            sent[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        check()
    return sent


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("examples", "seed"),
    [
        (EXAMPLES, 0),
        *(pytest.param(LONG_EXAMPLES, seed, marks=pytest.mark.long) for seed in range(1, 6)),
    ],
)
def test_no_request_breaks_the_service(
    stocked: tuple[str, dict[str, str]], examples: int, seed: int
) -> None:
    sent = check_operations(*stocked, examples, seed)
    print(f"{sent.total()} requests, answered {dict(sorted(sent.items()))}")
    assert sent.total() >= 25 * examples
    assert sent[200] + sent[201] > 2 * examples, "hardly a request reaches the service itself"
    assert sent[401] == 0
