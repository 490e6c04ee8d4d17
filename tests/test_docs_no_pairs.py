"""The numbers of docs/results/no-pairs.md are those of benchmarks/results/no_pairs.json."""

from __future__ import annotations

import json

from benchmarks.frontier import no_pairs_page


def test_the_page_shows_the_results():
    text = no_pairs_page.PAGE.read_text(encoding="utf-8")
    report = json.loads(no_pairs_page.NUMBERS.read_text(encoding="utf-8"))
    assert sorted(match["name"] for match in no_pairs_page.BLOCK.finditer(text)) == sorted(
        no_pairs_page.BLOCKS
    )
    assert text == no_pairs_page.filled(text, report), "python -m benchmarks.frontier.no_pairs_page"


def test_no_bad_alignment_was_called_good():
    honesty = json.loads(no_pairs_page.NUMBERS.read_text(encoding="utf-8"))["honesty"]
    assert honesty["bad_called_good"] == 0


def test_each_column_shows_what_its_title_says():
    ours = {"top_1": 0.91, "mean_rank": 1.2, "estimate": 0.8, "called_good": True, "seconds": 60}
    refused = {**ours, "estimate": 0.04, "called_good": False}
    paper = {"top_1": 0.02, "mean_rank": 300.0, "seconds": 50}
    shown = no_pairs_page.table(
        {
            "cells": {
                "a -> b, 20000, same": {"ours": ours, "paper": paper},
                "a -> b, 5000, same": {"ours": refused, "paper": paper},
            }
        }
    ).splitlines()
    assert shown[2] == (
        "| a -> b, 20,000, same | 0.910 | 1.2 | 0.80 | good | 60 | 0.020 | 300.0 | 50 |"
    )
    assert shown[3].split(" | ")[3:5] == ["0.04", "refused"]
