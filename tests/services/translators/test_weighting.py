"""Samples of stores and roles of anchors decide the weights of a fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.services.anchors import anchor_reports, anchor_sets, growth, samples
from app.services.serving import apply
from app.services.serving.confidence import confidence_of
from app.services.translators import translators, weighting
from app.services.translators.warnings import warnings_about_pair
from app.storage import tables
from tests.services.helpers import CONTEXT, PROJECT, again, create_encoder, some

OWN, FOREIGN = 60, 90
DIMS = {"x": 12, "y": 10}
REQUEST = translators.FitRequest("x", "y", "mixed", "ridge", {"ridge": 1.0})


def corpus(rows: int, which: int, seed: int) -> dict[str, torch.Tensor]:
    """The same items by both encoders; each corpus has its own subspace, mean and map."""
    inner = some(rows, 4, seed)
    return {
        name: inner @ some(4, dim, 50 + which) + 3.0 * some(1, dim, 60 + which)
        for name, dim in DIMS.items()
    }


OWN_ITEMS, FOREIGN_ITEMS = corpus(OWN, 0, 1), corpus(FOREIGN, 1, 2)
SAMPLE = corpus(200, 0, 3)["x"]


@pytest.fixture
def mixed(services):
    """The set `mixed` of two corpora, and `own` of the store's alone."""
    for name, dim in DIMS.items():
        create_encoder(services, name, dim)
    both = {name: torch.cat([OWN_ITEMS[name], FOREIGN_ITEMS[name]]) for name in DIMS}
    for name, embeddings in (("mixed", both), ("own", OWN_ITEMS)):
        anchor_sets.create_anchor_set(services, CONTEXT, name=name, embeddings=embeddings)
    return services


def put_sample(services, vectors=SAMPLE, name="mixed", encoder="x"):
    samples.put_sample(
        services, CONTEXT, anchor_set=name, encoder=encoder, vectors=vectors, store_size=None
    )


def translate(services, request=REQUEST):
    vectors = corpus(20, 0, 4)["x"]
    return apply.apply_map(services, CONTEXT, apply.Translation(request), vectors=vectors)


def row_of(services, answer) -> tables.TranslatorRow:
    return translators.find_with_report(services, PROJECT, answer.served.id)


def test_with_a_sample_foreign_anchors_change_a_translation_little(mixed):
    alone = translate(mixed, replace(REQUEST, anchor_set="own")).output.vectors
    before = translate(mixed).output.vectors
    put_sample(mixed)
    after = translate(mixed)
    assert (after.output.vectors - alone).norm() < 0.2 * (before - alone).norm()
    row = row_of(mixed, after)
    assert row.weights is not None
    assert again(mixed, row).weights == row.weights
    found = row.report["weights"]
    assert found["store"]["verdict"] == "foreign-anchors"
    assert found["store"]["foreign"] == pytest.approx(FOREIGN, abs=5)
    assert found["counted"] == OWN + FOREIGN - found["store"]["foreign"]
    assert row.report["held_out"]["translated"]["n"] == found["counted"]


def expected_of(services, request=REQUEST):
    answer = translate(services, request)
    return confidence_of(services, CONTEXT, answer, 0.9, field="vectors").expected.cosine


def test_the_confidence_is_of_the_weighed_translator(mixed):
    alone = expected_of(mixed, replace(REQUEST, anchor_set="own"))
    before = expected_of(mixed)
    put_sample(mixed)
    after = expected_of(mixed)
    assert (after - alone).abs().mean() < 0.2 * (before - alone).abs().mean()


def test_each_role_has_its_confidence(mixed):
    request = with_roles(mixed, ["query"] * 25 + ["document"] * 35)
    by_role = [expected_of(mixed, replace(request, role=role)) for role in (None, "query")]
    assert not torch.equal(*by_role)


def test_a_deleted_sample_gives_the_first_translator_again(mixed):
    first = translate(mixed).served.id
    put_sample(mixed)
    second = translate(mixed).served.id
    samples.delete_sample(mixed, CONTEXT, anchor_set="mixed", encoder="x")
    assert translate(mixed).served.id == first != second
    # The report of the weighed translator still measures with its own weights.
    row = translators.find_with_report(mixed, PROJECT, second)
    assert row.report["weights"] is None
    assert row.report["promise"]["anchors"] > 0


def test_a_sample_of_the_target_serves_both_directions(mixed):
    put_sample(mixed, corpus(200, 0, 5)["y"], encoder="y")
    for request in (REQUEST, replace(REQUEST, source="y", target="x")):
        pair = translators.find_pair(mixed, PROJECT, request)
        found = weighting.find_weights(mixed, *pair, None)
        assert float(found.weights[OWN:].mean()) < 0.6
        assert [each.code for each in warnings_about_pair(mixed, *pair)].count(
            "foreign-anchors"
        ) == 1


def test_anchors_of_the_store_are_not_weighed_and_nothing_is_warned_of(mixed):
    put_sample(mixed, name="own")
    request = replace(REQUEST, anchor_set="own")
    pair = translators.find_pair(mixed, PROJECT, request)
    assert weighting.find_weights(mixed, *pair, None) is weighting.NO_WEIGHTS
    assert "foreign-anchors" not in [each.code for each in warnings_about_pair(mixed, *pair)]
    row = row_of(mixed, translate(mixed, request))
    assert row.weights is None
    assert row.report["weights"]["store"]["verdict"] == "no-foreign-anchors"


def test_the_identity_compares_no_anchors_with_the_store(mixed):
    put_sample(mixed)
    answer = translate(mixed, replace(REQUEST, target="x", method="auto", options={}))
    assert [each.code for each in answer.served.warnings] == ["same-encoder"]
    assert "store coverage" not in {key[0] for key in mixed.cache.memory._entries}
    translate(mixed)
    assert "store coverage" in {key[0] for key in mixed.cache.memory._entries}


def test_a_small_sample_is_reported_as_too_small(mixed):
    put_sample(mixed, SAMPLE[:10])
    found = row_of(mixed, translate(mixed)).report["weights"]["store"]
    assert found["verdict"] == "unknown"
    assert "at least 50" in found["detail"]


def test_the_report_of_a_set_lists_foreign_anchors(mixed):
    put_sample(mixed)
    report = anchor_reports.report_anchor_set(mixed, PROJECT, "mixed")
    [finding] = [each for each in report.findings if each.code == "foreign-anchors"]
    assert finding.severity == "warning"
    assert finding.count == pytest.approx(FOREIGN, abs=5)


def with_roles(services, roles):
    anchor_sets.create_anchor_set(
        services, CONTEXT, name="roles", embeddings=OWN_ITEMS, roles=roles
    )
    return replace(REQUEST, anchor_set="roles")


def test_a_fit_by_role_is_measured_on_anchors_of_the_role(mixed):
    request = with_roles(mixed, ["query"] * 25 + ["document"] * 35)
    plain = row_of(mixed, translate(mixed, request))
    query = row_of(mixed, translate(mixed, replace(request, role="query")))
    assert plain.content != query.content
    assert (plain.role, query.role) == (None, "query")
    assert plain.report["weights"] is None
    assert query.report["weights"]["counted"] == query.report["weights"]["of_role"] == 25
    assert query.report["held_out"]["translated"]["n"] == 25
    assert plain.report["held_out"]["translated"]["n"] == OWN


def test_a_role_with_few_anchors_changes_nothing_and_the_report_says_how_many_there_are(mixed):
    request = replace(with_roles(mixed, ["query"] * 5 + ["document"] * 55), role="query")
    row = row_of(mixed, translate(mixed, request))
    assert row.weights is None
    assert row.report["weights"]["of_role"] == 5
    assert row.report["weights"]["counted"] == OWN


def test_queries_are_not_foreign_to_a_store_of_documents(mixed):
    """Their vectors are unlike it, and they must keep their weight."""
    roles = ["document"] * OWN + ["query"] * FOREIGN
    both = {name: torch.cat([OWN_ITEMS[name], FOREIGN_ITEMS[name]]) for name in DIMS}
    anchor_sets.create_anchor_set(mixed, CONTEXT, name="roles", embeddings=both, roles=roles)
    put_sample(mixed, name="roles")
    pair = translators.find_pair(mixed, PROJECT, replace(REQUEST, anchor_set="roles"))
    assert weighting.find_weights(mixed, *pair, None) is weighting.NO_WEIGHTS


def test_an_older_version_has_the_first_roles(mixed):
    request = replace(with_roles(mixed, ["query"] * 25 + ["document"] * 35), role="query")
    answer = translate(mixed, request)
    growth.append_items(
        mixed,
        CONTEXT,
        anchor_set="roles",
        embeddings=corpus(3, 0, 9),
        inputs=None,
        roles=["query"] * 3,
    )
    assert row_of(mixed, answer).report["weights"]["of_role"] == 25
    newer = row_of(mixed, translate(mixed, request))
    assert newer.report["weights"]["of_role"] == 28
