"""The report of `anchorage quickstart`, on the terminal and as Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from app.console.wording import OPTIONS


def as_markdown(answer: dict[str, Any]) -> str:
    """Return the report of a pair."""
    parts = _verdict(answer), _options(answer), _cost(answer), _anchors(answer), _next(answer)
    return "\n".join(line for part in parts for line in part)


def print_report(answer: dict[str, Any]) -> None:
    """Print the report on the terminal."""
    # Code is printed as it is: a terminal would indent and break it.
    for number, part in enumerate(re.split(r"```\w*\n", as_markdown(answer))):
        if number % 2:
            typer.echo(part)
        else:
            Console().print(Markdown(part))


def _verdict(answer: dict[str, Any]) -> Iterator[str]:
    yield f"# {answer['source']} to {answer['target']}: {answer['advice']}\n"
    yield f"{OPTIONS[answer['advice']].meaning}\n"
    yield f"{answer['options'][0]['reason']}\n"
    estimate = answer["fidelity"]
    if estimate is not None:
        recall = estimate["measures"]["recall"]
        yield (
            f"A translated query finds {recall['value']:.0%} (between {recall['low']:.0%} and "
            f"{recall['high']:.0%}) of the ten results that a native query finds among "
            f"{estimate['index']:,} items. The translator's method is `{answer['method']}`.\n"
        )
    if answer["basis"] != "judgements":
        yield f"{answer['summary']}\n"


def _options(answer: dict[str, Any]) -> Iterator[str]:
    yield "## All options, best first\n"
    yield "| option | nDCG@10 compared with keep | writes | encodings of a query |"
    yield "| --- | --- | --- | --- |"
    for option in answer["options"]:
        gain = option["over_keep"]
        worth = "unknown" if gain is None else f"{gain['low']:+.3f} to {gain['high']:+.3f}"
        if not option["possible"]:
            worth = "not possible"
        writes = "unknown" if option["writes"] is None else f"{option['writes']:,}"
        texts = f", {option['texts_per_query']:.3g} texts" if option["texts_per_query"] else ""
        encodings = f"{option['encodings_per_query']}{texts}"
        yield f"| {option['name']} | {worth} | {writes} | {encodings} |"
    yield ""
    names: dict[str, list[str]] = {}
    for option in answer["options"][1:]:
        names.setdefault(option["reason"], []).append(option["name"])
    for reason, options in names.items():
        yield f"- **{', '.join(options)}**: {reason}"
    yield ""


def _cost(answer: dict[str, Any]) -> Iterator[str]:
    if answer["tokens"]:
        rows, tokens, price = (answer[name] for name in ("corpus_size", "tokens", "price"))
        cost = "; pass --price to see what they cost"
        if price is not None:
            cost = f" and costs {max(tokens / 1e6 * price, 0.01):,.2f} at {price:g} a million"
        yield f"To embed all {rows:,} texts again takes about {tokens:,} tokens{cost}.\n"


def _anchors(answer: dict[str, Any]) -> Iterator[str]:
    yield "## Anchors\n"
    yield f"The anchor set `{answer['anchor_set']}` has {answer['anchors']:,} items.\n"
    problems = [each for each in answer["findings"] if each["severity"] != "info"]
    if not problems:
        yield "No problem was found in them."
    for finding in problems:
        rows = f" Rows: {', '.join(map(str, finding['rows']))}." if finding["rows"] else ""
        yield (
            f"- {finding['severity']}, {finding['code']}, {', '.join(finding['encoders'])}: "
            f"{finding['detail']}.{rows}"
        )
    yield ""


def _next(answer: dict[str, Any]) -> Iterator[str]:
    pair = ", ".join(f'{name}="{answer[name]}"' for name in ("source", "target", "anchor_set"))
    yield "## Next\n"
    if answer["setting"] is not None:
        password = " PASSWORD stands for yours." if "PASSWORD" in answer["setting"] else ""
        yield "The service opens only addresses that its settings list. Add this one to "
        yield f"`ANCHORAGE_STORES`, or set it:{password}\n"
        yield "```sh"
        yield f"export ANCHORAGE_STORES={shlex.quote(answer['setting'])}"
        yield "```\n"
    if answer["store"]:
        task = "search the store with the new model"
        lines = [
            f'rankings = client.stores.search("{answer["store"]}", target="{answer["target"]}", '
            f'inputs=["a question"], anchor_set="{answer["anchor_set"]}")',
            "print(rankings.results[0].ids)",
        ]
    elif answer["advice"] in ("fuse", "cascade"):
        task = "rank what your index returns; here, its first 100 rows"
        more = ", old_queries=old[:1]" if answer["advice"] == "fuse" else ""
        lines = [
            *_arrays(answer["files"]),
            'candidates = [{"ids": list(range(100)), "vectors": old[:100]}]',
            f"rankings = client.rescore({pair}, queries=new[:1]{more}, candidates=candidates, "
            f'mode="{answer["advice"]}")',
            "print(rankings.results[0].ids)",
        ]
    else:
        task = "translate"
        lines = [
            *_arrays(answer["files"]),
            f"print(client.translate(old, {pair}).vectors.shape)",
        ]
    yield f"Start the service with `anchorage serve`, and {task}:\n"
    yield "```python"
    if not answer["store"]:
        yield "import numpy as np"
    yield "from anchorage_client import Client\n"
    yield f'client = Client("{answer["url"]}")'
    yield from lines
    yield "```\n"
    yield "`anchorage doctor` checks the deployment. The console shows the pair at /console.\n"


def _arrays(files: list[str]) -> Iterator[str]:
    """Yield lines of a program that read the vectors which the report is about."""
    for name, place in zip(("old", "new"), files, strict=True):
        file = Path(place)
        if file.suffix == ".npy" and file.is_file():
            yield f"{name} = np.load({place!r})"
        else:
            yield f"{name} = np.asarray(...)  # the vectors of {place}, one in each row"
