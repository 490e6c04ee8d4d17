"""Cannistraci et al. 2023 on real data: are anchors that grew from 15 seeds as good as true ones?

    python -m research.bootstrap                   # everything
    python -m research.bootstrap --resume          # the same, without what is measured already
    python -m research.bootstrap --only stitching  # one section; the other stays
    python -m research.bootstrap --quick           # few draws; writes bootstrap-quick.json
    python -m research.bootstrap --plan            # cells, and how long they will take

Writes research/results/bootstrap.json.

Items embedded by two encoders, one side in another order; some true pairs are the seeds. Means and
standard deviations over draws of items, order and seeds; methods that take minutes have fewer
draws. Seconds are of one core. Data: see benchmarks/quality/data.py. What the product promises of
bootstrapping is in benchmarks/bootstrap.
"""

from __future__ import annotations

from benchmarks.bootstrap.report import summaries
from benchmarks.bootstrap.sections import Section, command, last_paragraph
from research.bootstrap import paper_tables, retrieval, stitching, tables
from research.common import RESULTS

SECTIONS = {
    retrieval.NAME: Section(retrieval, summaries.of_rows, tables.of_rows),
    stitching.NAME: Section(stitching, summaries.of_rows, tables.of_rows),
}


def main() -> None:
    """Measure, show and write the chosen sections, next to what the paper prints."""
    paper = {"source": paper_tables.SOURCE, "tables": paper_tables.TABLES}
    command(
        __doc__,
        SECTIONS,
        RESULTS / "bootstrap.json",
        {"about": last_paragraph(__doc__), "paper": paper},
    )


if __name__ == "__main__":
    main()
