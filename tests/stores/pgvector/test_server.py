"""The server that the tests of pgvector use."""

from __future__ import annotations

import psycopg


def test_the_server_has_pgvector(pgvector_url: str) -> None:
    with psycopg.connect(pgvector_url) as connection:
        [distance] = connection.execute("SELECT '[1,0]'::vector <=> '[0,1]'::vector").fetchone()
    assert distance == 1.0
