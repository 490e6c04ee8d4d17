"""Cannistraci et al. 2023 on real data: are anchors that grew from 15 seeds as good as true ones?

    python -m research.bootstrap                   # everything
    python -m research.bootstrap --quick           # few draws; writes bootstrap-quick.json

Writes research/results/bootstrap.json.

Items embedded by two encoders, one side in another order; some true pairs are the seeds. Means and
standard deviations over draws of items, order and seeds; methods that take minutes have fewer
draws. Data: see benchmarks/quality/data.py. What the product estimates of
bootstrapping is in benchmarks/bootstrap.
"""

from __future__ import annotations

from benchmarks.bootstrap import summaries
from benchmarks.bootstrap.cells import Section, command
from research.bootstrap import retrieval, tables
from research.common import RESULTS

SECTIONS = {retrieval.NAME: Section(retrieval.cells, summaries.of_rows)}


def main() -> None:
    """Measure, show and write the chosen sections, next to what the paper prints."""
    command(__doc__, SECTIONS, RESULTS / "bootstrap.json", tables.of_report)


if __name__ == "__main__":
    main()
