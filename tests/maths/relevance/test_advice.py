"""The rules of advice: theorems over any measured options, and known cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.maths.relevance.advice import (
    ADVISED_OPTIONS,
    FEWEST_QUERIES,
    GainOverKeep,
    IndexFacts,
    MeasuredOption,
    rank_options,
)

#: enough queries
QUERIES = 30


@st.composite
def measurements(draw):
    """Any subset of the options with their qualities, and gains over keep if keep is among them."""
    names = draw(st.sets(st.sampled_from(ADVISED_OPTIONS)))
    quality = {name: draw(st.floats(0, 1)) for name in ADVISED_OPTIONS}
    found = {}
    for name in names:
        gain = None
        if name != "keep" and "keep" in names:
            value, half = quality[name] - quality["keep"], draw(st.floats(0, 0.5))
            gain = GainOverKeep(value, value - half, value + half)
        found[name] = MeasuredOption(quality[name], gain)
    return found


maybe = st.sampled_from([None, True, False])
index_facts = st.builds(
    IndexFacts,
    st.integers(2, 5_000),
    reliable=st.booleans(),
    old_encoder_runs=maybe,
    text_exists=maybe,
    new_encoder_runs=st.booleans(),
    difference=st.none() | st.floats(-0.5, 0.5),
)


@given(index_facts, measurements())
def test_every_option_is_listed_once_and_impossible_ones_last(known, measured):
    ranked = rank_options(known, measured, QUERIES)
    assert sorted(each.name for each in ranked) == sorted(ADVISED_OPTIONS)
    assert all(each.reason.endswith(".") and ". " not in each.reason for each in ranked)
    possible = [each.possible for each in ranked]
    assert possible == sorted(possible, reverse=True)
    assert possible[0]
    impossible = {each.name for each in ranked if not each.possible}
    assert ("keep" in impossible) == ("fuse" in impossible) == (known.old_encoder_runs is False)
    assert ("re-embed" in impossible) == (known.text_exists is False)
    assert ("native" in impossible) == (known.text_exists is False or not known.new_encoder_runs)


def test_a_slightly_better_option_must_be_worth_its_writes():
    measured = {
        "keep": MeasuredOption(0.30),
        "cascade": MeasuredOption(0.400, GainOverKeep(0.10, 0.05, 0.15)),
        "re-embed": MeasuredOption(0.415, GainOverKeep(0.115, 0.06, 0.17)),
    }
    names = [each.name for each in rank_options(IndexFacts(300), measured, QUERIES)]
    assert names[:3] == ["cascade", "re-embed", "keep"]
    measured["re-embed"] = MeasuredOption(0.43, GainOverKeep(0.13, 0.07, 0.19))
    assert rank_options(IndexFacts(300), measured, QUERIES)[0].name == "re-embed"
    measured["re-embed"] = MeasuredOption(0.43, GainOverKeep(0.13, -0.01, 0.27))
    names = [each.name for each in rank_options(IndexFacts(300), measured, QUERIES)]
    assert names[:3] == ["cascade", "keep", "re-embed"]


def test_a_far_worse_new_encoder_leaves_everything_as_it_is_whatever_a_comparison_says():
    measured = {
        "keep": MeasuredOption(0.369),
        "fuse": MeasuredOption(0.368, GainOverKeep(-0.001, -0.01, 0.008)),
        "translate": MeasuredOption(0.224, GainOverKeep(-0.145, -0.18, -0.11)),
        "re-embed": MeasuredOption(0.229, GainOverKeep(-0.14, -0.17, -0.11)),
    }
    ranked = rank_options(IndexFacts(300, True, True, True, True, 0.2), measured, QUERIES)
    assert ranked[0].name == "keep"
    certainty = {each.name: each.certainty for each in ranked}
    expected = {"keep": "measured", "fuse": "undecided", "native": "unknown"}
    assert expected.items() <= certainty.items()


@given(index_facts, measurements(), st.integers(1, FEWEST_QUERIES - 1))
def test_too_few_judged_queries_decide_nothing(known, measured, queries):
    ranked = rank_options(known, measured, queries)
    assert [each.name for each in ranked] == [each.name for each in rank_options(known, {}, 0)]
    assert "measured" not in {each.certainty for each in ranked}


@pytest.mark.parametrize(
    ("known", "first"),
    [
        (IndexFacts(300), "fuse"),
        (IndexFacts(99), "keep"),
        (IndexFacts(300, reliable=False), "keep"),
        (IndexFacts(300, old_encoder_runs=False), "cascade"),
        (IndexFacts(300, old_encoder_runs=False, reliable=False), "re-embed"),
        (IndexFacts(300, text_exists=True), "fuse"),
        (IndexFacts(300, text_exists=True, new_encoder_runs=True), "native"),
        (IndexFacts(99, False, True, True, new_encoder_runs=True), "native"),
        (IndexFacts(300, True, False, True, new_encoder_runs=True), "native"),
    ],
)
def test_without_judgements_the_order_follows_what_is_known(known, first):
    ranked = rank_options(known, {}, 0)
    assert ranked[0].name == first
    assert {each.certainty for each in ranked} <= {"expected", "unknown"}


def test_writing_translations_is_expected_to_find_what_a_search_of_old_vectors_finds():
    first, second, *_ = rank_options(IndexFacts(310, True, False, False), {}, 0)
    assert (first.name, second.name) == ("cascade", "translate")
    assert first.reason == second.reason
    assert "with 300 anchors" in first.reason
    assert "by -0.045 in the mean" in first.reason


@pytest.mark.parametrize(
    ("difference", "text_exists", "order"),
    [
        (0.2, True, ["re-embed", "native", "fuse", "keep"]),
        (0.05, True, ["native", "fuse", "re-embed", "keep"]),
        (-0.2, True, ["keep", "native", "fuse", "re-embed"]),
        (0.2, False, ["fuse", "keep"]),
    ],
)
def test_with_a_comparison_the_order_follows_what_such_encoders_gained(
    difference, text_exists, order
):
    facts = IndexFacts(300, True, True, text_exists, text_exists, difference)
    ranked = rank_options(facts, {}, 0)
    assert [each.name for each in ranked if each.over_keep] == order
    gains = {each.name: each.over_keep for each in ranked}
    nothing = GainOverKeep(0.0, 0.0, 0.0)
    assert gains["keep"] == nothing
    if text_exists:
        assert gains["re-embed"].value == difference
        assert gains["re-embed"].low < difference < gains["re-embed"].high
