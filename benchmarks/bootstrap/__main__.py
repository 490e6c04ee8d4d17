"""How many anchors grow from a few seeds, how many of them are right, and does the estimate know
it?

    python -m benchmarks.bootstrap                      # everything
    python -m benchmarks.bootstrap --resume             # the same, without what is measured already
    python -m benchmarks.bootstrap --only counts scale  # some sections; the others stay
    python -m benchmarks.bootstrap --quick              # few draws; writes bootstrap-quick.json
    python -m benchmarks.bootstrap --plan               # cells, and how long they will take
    python -m benchmarks.bootstrap --page               # only write the tables of the documentation

Writes benchmarks/results/bootstrap.json and bootstrap.png.

Items embedded by two encoders, one side in another order; some true pairs are the seeds. Means and
standard deviations over draws of items, order and seeds; methods that take minutes have fewer
draws. Seconds are of one core. Data: see benchmarks/quality/data.py; for `scale`, corpora of film
reviews. The tables of the paper are in research/bootstrap.
"""

from __future__ import annotations

from benchmarks.bootstrap import ablation, counts, kill, more_seeds, scale, strangers, swapped
from benchmarks.bootstrap.report import picture, summaries, tables
from benchmarks.bootstrap.sections import Section, command, last_paragraph
from benchmarks.common import RESULTS, read

SECTIONS = {
    counts.NAME: Section(counts, summaries.of_counts, tables.of_counts),
    scale.NAME: Section(scale, summaries.of_scale, tables.of_scale),
    strangers.NAME: Section(strangers, summaries.of_strangers, tables.of_strangers),
    swapped.NAME: Section(swapped, summaries.of_swapped, tables.of_swapped),
    more_seeds.NAME: Section(more_seeds, summaries.of_more_seeds, tables.of_more_seeds),
    ablation.NAME: Section(ablation, summaries.of_counts, tables.of_counts),
    kill.NAME: Section(kill, summaries.of_kill, tables.of_kill),
}


def main() -> None:
    """Measure, show and write the chosen sections, draw them, and fill the tables of the
    documentation.
    """
    written = command(
        __doc__, SECTIONS, RESULTS / "bootstrap.json", {"about": last_paragraph(__doc__)}
    )
    if written is not None:
        picture.draw(read(written), written.with_suffix(".png"))


if __name__ == "__main__":
    main()
