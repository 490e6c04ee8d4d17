"""Write the generated parts of the pages: `python scripts/pages.py`, or `make pages`.

A part stands between "<!-- settings -->" and "<!-- /settings -->".
Tests compare the pages with what this module writes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: "<!-- settings -->", or a table of results: "<!-- relevance/cranfield -->"
BLOCK = re.compile(r"<!-- (?P<name>[a-z_]+[\w/-]*) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
RESULTS = (ROOT / "benchmarks" / "results", ROOT / "research" / "results")


MIB = 2**20


def main() -> None:
    """Fill the generated parts of all pages anew."""
    for path in PAGES:
        page = ROOT / path
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """A page with its generated parts as they should be. Parts of other names stay as they are."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name in BLOCKS:
            content = BLOCKS[name]()
        elif "/" in name:
            content = results(*name.split("/"))
        else:
            return match[0]
        return f"<!-- {name} -->\n{content.strip()}\n<!-- /{name} -->"

    return BLOCK.sub(block, text)


def results(file: str, name: str) -> str:
    """A table that a benchmark or a reproduction wrote. Raises KeyError without it."""
    for folder in RESULTS:
        path = folder / f"{file}.json"
        if path.exists():
            return table(json.loads(path.read_text(encoding="utf-8"))["tables"][name])
    raise KeyError(f"no results of {file}")


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row has the columns."""
    columns, *others = rows
    lines = (columns, ["---"] * len(columns), *others)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def settings() -> str:
    """A table of all settings, from their class."""
    from app.settings import Settings

    rows = (
        f"| `ANCHORAGE_{name.upper()}` | {_default(name, field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    )
    return "| variable | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows)


def _default(name: str, value: object) -> str:
    if value is None or value == "":
        return ""
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({value // MIB:,} MiB)"
    return str(value)


def commands() -> str:
    """Every command of the command line with its arguments and options, from typer."""
    import typer

    from app.cli import cli

    return "\n\n".join(
        _command(name, command) for name, command in _all("anchorage", typer.main.get_command(cli))
    )


def _all(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The visible commands of a group, and of the groups inside it, by their whole names."""
    for each in getattr(command, "commands", {}).values():
        if each.hidden:
            continue
        inner = f"{name} {each.name}"
        if hasattr(each, "commands"):
            yield from _all(inner, each)
        else:
            yield inner, each


def _command(name: str, command: Any) -> str:
    parameters = [each for each in command.params if each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    usage = " ".join(
        [
            name,
            *(["[OPTIONS]"] if len(arguments) < len(parameters) else []),
            *(_metavar(each) for each in arguments),
        ]
    )
    parts = [f"## {name}", f"```text\n{usage}\n```", inspect.cleandoc(command.help or "")]
    if parameters:
        rows = (
            f"| {_named(each)} | {_value(each)} | {getattr(each, 'help', None) or ''} |"
            for each in parameters
        )
        parts.append("| parameter | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _metavar(parameter: Any) -> str:
    return str(parameter.name).upper()


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_metavar(parameter)}`"
    return ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))


def _value(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    return (
        ""
        if default is None or callable(default) or default is False or default == ()
        else f"{default}"
    )


#: the columns of the demo's table in demo.json, and their titles
DEMO_COLUMNS = {
    "plain_cosine": "plain cosine",
    "plain_recall": "plain recall@10",
    "cosine": "centred cosine",
    "recall": "centred recall@10",
    "mrr": "centred MRR",
}
#: the rows of the README's table, and what the README calls them
README_ROWS = {
    "do nothing": "do nothing",
    "irp": "irp (Maiorca et al. 2024)",
    "procrustes": "procrustes",
    "auto": "auto (default)",
}


def demo() -> str:
    """The demo's table: the means over all pairs."""
    return _demo_table({name: name for name in _demo()["mean"]})


def readme_demo() -> str:
    """The README's part of the demo's table."""
    return _demo_table(README_ROWS)


def _demo_table(names: Mapping[str, str]) -> str:
    mean = _demo()["mean"]
    rows = [
        [title, *(f"{mean[name][key]:.3f}" for key in DEMO_COLUMNS)]
        for name, title in names.items()
    ]
    return table([["method", *DEMO_COLUMNS.values()], *rows])


def demo_words() -> str:
    """The demo's other numbers, in sentences."""
    report = _demo()
    farthest = {
        name: max(
            abs(row[f"estimated_{name}"] - row[f"measured_{name}"]) for row in report["estimates"]
        )
        for name in ("recall", "cosine")
    }
    heads = report["heads"]
    least, most = (limit(row["stitched"] for row in heads) for limit in (min, max))
    native = sorted(row["native"] for row in heads)
    return (
        "The service estimates a quality from the anchors alone: "
        "every anchor is translated by a fit that never saw it.\n"
        f"In the six pairs, the measured recall is within {farthest['recall']:.3f} of the "
        "estimate, "
        f"and the measured cosine within {farthest['cosine']:.3f}.\n"
        "A classifier trained on one encoder and used with another is right "
        f"for {least:.2f} to {most:.2f} of the sentences; "
        f"with its own encoder it is right for {native[0]:.2f} to {native[-1]:.2f}, "
        f"and without translation for at most {max(row['untranslated'] for row in heads):.2f}."
    )


def _demo() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "demo": demo,
    "demo-words": demo_words,
    "readme-demo": readme_demo,
}
PAGES = (
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in ROOT.glob("docs/**/*.md")
        if BLOCK.search(path.read_text(encoding="utf-8"))
    ),
)


if __name__ == "__main__":
    main()
