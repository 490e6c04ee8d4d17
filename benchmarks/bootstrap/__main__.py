"""How many anchors grow from a few seeds, how many of them are right, and does the estimate know
it?

    python -m benchmarks.bootstrap                      # everything
    python -m benchmarks.bootstrap --only counts swapped  # some sections; the others stay
    python -m benchmarks.bootstrap --quick              # few draws; writes bootstrap-quick.json

Writes benchmarks/results/bootstrap.json.

Items embedded by two encoders, one side in another order; some true pairs are the seeds. Means and
standard deviations over draws of items, order and seeds; methods that take minutes have fewer
draws. Data: see benchmarks/quality/data.py.
"""

from __future__ import annotations

from benchmarks.bootstrap import counts, strangers, summaries, swapped, tables
from benchmarks.bootstrap.cells import Section, command
from benchmarks.common import RESULTS

SECTIONS = {
    counts.NAME: Section(counts.cells, summaries.of_counts),
    strangers.NAME: Section(strangers.cells, summaries.of_strangers),
    swapped.NAME: Section(swapped.cells, summaries.of_swapped),
}


def main() -> None:
    """Measure, show and write the chosen sections."""
    command(__doc__, SECTIONS, RESULTS / "bootstrap.json", tables.of_report)


if __name__ == "__main__":
    main()
