"""The tables of README.md and docs/results/bootstrap.md, made of the results.

A table stands between "<!-- counts -->" and "<!-- /counts -->", by its name in BLOCKS. Nothing but the JSON is needed here, so
that a test can compare the pages with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs/results/bootstrap.md")
BLOCK = re.compile(r"<!-- (?P<name>[a-z-]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)

Report = dict[str, Any]

#: numbers of seeds, as counts.py has them
COUNTS = ("0", "3", "5", "10", "15", "25", "50")
#: what a place's numbers stand beside: what the paper's rows are of, and its tables, each with what is said of its rows
WORDS = ("about 20,000 words of other models", {"1 and 4": "", "5": ", FastText's anchors optimised"})
IMAGES = ("CIFAR-10 by two ViTs, forth from ViT-base to ViT-small", {"7": ""})
PRINTED = {
    "all words, w2v -> fasttext": WORDS,
    "all words, googlenews -> fasttext": WORDS,
    "CIFAR-10, V1 1.0 -> SqueezeNet": IMAGES,
    "CIFAR-10, V2 -> SqueezeNet": IMAGES,
}
RETRIEVED = {"jaccard": "Jaccard", "mrr": "MRR", "cosine": "cosine"}
STITCHED = {"accuracy": "accuracy", "f1": "F1"}


def write(report: Report) -> None:
    """Fill the pages' blocks anew."""
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8"), report), encoding="utf-8")


def filled(text: str, report: Report) -> str:
    """A page with its blocks as they should be; of names that are not known, as they are."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n{BLOCKS[name](report).strip()}\n<!-- /{name} -->" if name in BLOCKS else match[0]

    return BLOCK.sub(block, text)


def table(columns: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """In Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


# --- how many are right --------------------------------------------------------------------------------------------------------


def _counted(row: dict[str, Any] | None) -> str:
    """The share that is right, and runs that are mostly right, of draws."""
    return "" if row is None else f"{row['share']['mean']:.2f} ({row['good']}/{row['draws']})"


def _overview(report: Report) -> str:
    """Self-learning by the number of seeds, and the other methods by fifteen."""
    columns = ("pools of 1,500 items", "no seeds", *COUNTS[1:], "vecmap, 15", "paper, 15")
    cases = report["sections"]["counts"]["cases"].items()
    return table(
        columns,
        (
            (
                case,
                *(_counted(methods["self-learning"].get(count)) for count in COUNTS),
                *(_counted(methods[other].get("15")) for other in ("vecmap", "paper")),
            )
            for case, methods in cases
        ),
    )


def _counts(report: Report) -> str:
    return table(
        ("pools", "method", "no seeds", *COUNTS[1:]),
        (
            (case, method, *(_counted(rows.get(count)) for count in COUNTS))
            for case, methods in report["sections"]["counts"]["cases"].items()
            for method, rows in methods.items()
        ),
    )


def _ablation(report: Report) -> str:
    """A row for each variation, a column for each place: of self-learning, and of the paper's method."""
    cases = report["sections"]["ablation"]["cases"]
    return "\n\n".join(_varied(method, cases) for method in ("self-learning", "paper"))


def _varied(method: str, cases: dict[str, Any]) -> str:
    places = [place for place, rows in cases.items() if any(name.startswith(f"{method}, ") for name in rows)]
    names = dict.fromkeys(name for place in places for name in cases[place] if name.startswith(f"{method}, "))
    seeds = (next(iter(rows)) for place in places for name, rows in cases[place].items() if name == f"{method}, as it is")
    columns = ("variation", *(f"{place}, {count} seeds" for place, count in zip(places, seeds, strict=True)))
    return table(columns, ((name, *(_counted(next(iter(cases[place][name].values()))) for place in places)) for name in names))


# --- is it known ---------------------------------------------------------------------------------------------------------------


def _told(report: Report) -> str:
    """The README's sentences."""
    counted = report["sections"]["counts"]["honesty"]["self-learning"]
    strange = report["sections"]["strangers"]["honesty"]["self-learning"]
    large = report["sections"]["scale"]["runs"]["self-learning, 20000"]
    return (
        f"Of {counted['runs']} runs {counted['good']} were mostly right; {counted['said_good']} were called so, "
        f"{counted['bad_called_good']} of them falsely.\nWhere the pools have only part of their items in common the estimate "
        f"knows that too: {strange['runs']} runs with three quarters to a tenth, or none,\nunrelated clouds and noisy ones; "
        f"the estimated share was off by {strange['share_error']:.3f} on average, and {strange['bad_called_good']} bad runs were "
        f"called good.\nOf 20,000 x 20,000 sentences fifteen seeds found {large['pairs']:,} more pairs, {large['right']:,} of "
        f"them right, in {large['run_seconds'] / 60:.0f} minutes of a core and {large['above_bytes'] / 2**20:.0f} MiB beside "
        "the vectors."
    )


def _honesty(report: Report) -> str:
    columns = ("runs", "good", "called good", "called what it is", "bad called good", "good called bad", "error of the share")
    return table(
        ("section", "method", *columns),
        (
            (
                section,
                method,
                *(told[name] for name in ("runs", "good", "said_good")),
                f"{told['right']:.3f}",
                *(told[name] for name in ("bad_called_good", "good_called_bad")),
                f"{told['share_error']:.3f}",
            )
            for section in ("counts", "strangers")
            for method, told in report["sections"][section]["honesty"].items()
        ),
    )


def _levels(report: Report) -> str:
    return table(
        ("method", "confidence from", "pairs", "right", "mean confidence"),
        (
            (method, level, f"{told['pairs']:,}", f"{told['right']:.3f}", f"{told['expected']:.3f}")
            for method, levels in report["sections"]["counts"]["levels"].items()
            for level, told in levels.items()
        ),
    )


def _more(report: Report) -> str:
    more = report["sections"]["counts"]["more"].items()
    return table(
        ("seeds", "refused", "good with more"), ((count, told["refused"], told["good_with_more"]) for count, told in more)
    )


def _asked(report: Report) -> str:
    return table(
        ("pools", "refused", "asked for", "at random"),
        (
            (place, told["refused"], *(told[way]["good"] for way in ("asked for", "at random")))
            for place, told in report["sections"]["asked"]["places"].items()
        ),
    )


def _strangers(report: Report) -> str:
    return table(
        ("pools", "pairs", "right", "estimated", "draws mostly right", "draws called good"),
        (
            (kind, f"{told['pairs']:,.0f}", f"{told['share']:.2f}", f"{told['said_share']:.2f}", told["good"], told["said_good"])
            for kind, told in report["sections"]["strangers"]["kinds"].items()
        ),
    )


def _swapped(report: Report) -> str:
    columns = ("pools", "draws", "wrong seeds", "named", "right ones accused", "pairs", "right", "estimated")
    return table(
        columns,
        (
            (
                place,
                *(told[name] for name in ("draws", "wrong", "named", "accused")),
                f"{told['pairs']:,.0f}",
                *(f"{told[name]:.2f}" for name in ("share", "said_share")),
            )
            for place, told in report["sections"]["swapped"]["places"].items()
        ),
    )


# --- what they are good for ----------------------------------------------------------------------------------------------------


def _figure(value: dict[str, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value['mean']:.3f}" + ("" if value["std"] is None else f" ± {value['std']:.3f}")


def _retrieval(report: Report) -> str:
    places = report["sections"]["retrieval"]["places"]
    titled = (
        f"## {place}: relative vectors that find each other\n\n{_placed(rows, RETRIEVED)}" for place, rows in places.items()
    )
    return "\n\n".join(text + _printed(report, place) for text, place in zip(titled, places, strict=True))


def _stitching(report: Report) -> str:
    places = report["sections"]["stitching"]["places"].items()
    read = [f"## {place}: a head reads the other encoder\n\n{_placed(rows, STITCHED)}" for place, rows in places]
    return "\n\n".join([*read, f"## A head reads the other encoder, in the paper\n\n{_printed_stitching(report)}"])


def _placed(rows: dict[str, Any], figures: dict[str, str]) -> str:
    """What every set of anchors does, there and back."""
    columns = ("anchors of", "seeds", "pairs, read by", "draws", "right")
    ways = {"forth": "→", "back": "←"}
    return table(
        (*columns, *(f"{arrow} {title}" for arrow in ways.values() for title in figures.values())),
        (
            (
                row["method"],
                row["seeds"] or "",
                row["read"],
                row["draws"],
                f"{row['right']:.2f}" if "right" in row else "",
                *(_figure(row.get(way, {}).get(name)) for way in ways for name in figures),
            )
            for row in rows.values()
        ),
    )


def _printed(report: Report, place: str) -> str:
    """The paper's rows, where it has any like a place's."""
    rows = list(printed(report["paper"]["tables"], place))
    if not rows:
        return ""
    columns = (f"{arrow} {title}" for arrow in "→←" for title in RETRIEVED.values())
    told = ((name, *(_as_printed(way[figure]) for way in ways for figure in RETRIEVED)) for name, *ways in rows)
    items, numbers = PRINTED[place]
    heading = f"\n\nWhat the paper prints ({_tables(*numbers)}; {items}, five seeds):\n\n"
    return heading + table(("anchors, seeds", *columns), told)


def printed(tables: dict[str, Any], place: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, forth and back of the paper's rows that stand beside a place's."""
    _, numbers = PRINTED.get(place, ("", {}))
    for number, more in numbers.items():
        for name, ways in tables[number]["rows"].items():
            (first, forth), (_, back) = ways.items()
            # The paper's first way is our way back where it begins with what ours ends with.
            turned = first.split(" -> ")[0] == place.rsplit(" -> ", maxsplit=1)[-1]
            yield name + more, *((back, forth) if turned else (forth, back))


def _printed_stitching(report: Report) -> str:
    rows = report["paper"]["tables"]["2 and 6"]["rows"].items()
    heading = f"{_tables('2 and 6')}; five stars of Amazon reviews, weighted F1 and MAE, five seeds:\n\n"
    return heading + table(
        ("stitched", "anchors, seeds", "F1", "MAE"),
        (
            (place, name, *(_as_printed(row[figure]) for figure in ("f1", "mae")))
            for place, anchors in rows
            for name, row in anchors.items()
        ),
    )


def _as_printed(value: Sequence[float]) -> str:
    """Mean and deviation."""
    return "{:.2f} ± {:.2f}".format(*value)


def _tables(*numbers: str) -> str:
    told = " and ".join(", ".join(numbers).replace(" and ", ", ").rsplit(", ", maxsplit=1))
    return f"Tables {told}" if " and " in told else f"Table {told}"


# --- what it costs -------------------------------------------------------------------------------------------------------------


def _scale(report: Report) -> str:
    def rows() -> Iterator[Sequence[object]]:
        for name, run in report["sections"]["scale"]["runs"].items():
            method, _, size = name.rpartition(", ")
            whole = f"{run['run_seconds']:,.0f}" if run["finished"] else f"(about {run['step_seconds'] * run['of']:,.0f})"
            right = f"{run['right'] / max(1, run['pairs']):.3f} of {run['pairs']:,}" if run["finished"] else ""
            each = "" if run["step_seconds"] is None else f"{run['step_seconds']:.2f}"
            yield method, f"{int(size):,}", each, whole, f"{run['above_bytes'] / 2**20:,.0f}", right

    return table(("method", "items", "s a step", "s in all", "MiB", "right"), rows())


def _kill(report: Report) -> str:
    columns = ("run", "killed after steps", "same bits", "pairs", "right", "s undisturbed", "s killed")
    return table(
        columns,
        (
            (
                name,
                ", ".join(map(str, run["at_steps"])),
                "yes" if run["same_bits"] and run["same_result"] else "NO",
                f"{run['pairs']:,}",
                f"{run['right']:.3f}",
                *(f"{run[clock]:.0f}" for clock in ("undisturbed_s", "killed_s")),
            )
            for name, run in report["sections"]["kill"]["runs"].items()
        ),
    )


BLOCKS: dict[str, Callable[[Report], str]] = {
    "bootstrap": _overview,
    "bootstrap-told": _told,
    "counts": _counts,
    "honesty": _honesty,
    "levels": _levels,
    "more": _more,
    "asked": _asked,
    "strangers": _strangers,
    "swapped": _swapped,
    "retrieval": _retrieval,
    "stitching": _stitching,
    "scale": _scale,
    "kill": _kill,
    "ablation": _ablation,
}
