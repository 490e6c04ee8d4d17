"""Which options each kind of store has."""

from __future__ import annotations

import pytest

from app.errors import InvalidOption
from app.stores.registry import CONNECTORS, require_known_options


@pytest.mark.parametrize("kind", CONNECTORS)
def test_an_unknown_option_is_named(kind: str) -> None:
    require_known_options(kind, {})
    with pytest.raises(InvalidOption, match="'dsn'") as caught:
        require_known_options(kind, {"dsn": "postgresql://u:correct-horse@h/x"})
    assert "correct-horse" not in caught.value.detail


def test_known_options_are_taken() -> None:
    require_known_options("pgvector", {"ef_search": 60, "type": "halfvec"})
    require_known_options("lancedb", {"distance": "dot"})


@pytest.mark.parametrize("kind", ["qdrant", "chroma", "milvus"])
def test_a_field_of_ids_is_refused_where_a_connector_would_ignore_it(kind: str) -> None:
    with pytest.raises(InvalidOption, match="id_field"):
        require_known_options(kind, {}, "topic")
