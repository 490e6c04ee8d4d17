"""The report of `anchorage quickstart`, on the terminal and as Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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
    advice = answer["advice"]
    yield "## Next\n"
    if answer["setting"] is not None:
        password = " PASSWORD stands for yours." if "PASSWORD" in answer["setting"] else ""
        yield "The service opens only addresses that its settings list. Add this one to "
        yield f"`ANCHORAGE_STORES`, or set it:{password}\n"
        yield "```sh"
        yield f"export ANCHORAGE_STORES={shlex.quote(answer['setting'])}"
        yield "```\n"
    if advice in ("fuse", "cascade"):
        yield "Start the service with `anchorage serve`, and rank what your index returns:\n"
        more = ", old_queries=old_queries" if advice == "fuse" else ""
        call = (
            f'candidates = [{{"ids": ids, "vectors": stored_vectors}}]\n'
            f"rankings = client.rescore({pair}, queries=new_queries{more}, candidates=candidates, "
            f'mode="{advice}")'
        )
    elif advice == "native" or (advice == "re-embed" and answer["store"]):
        until = " until its texts are embedded again" if advice == "re-embed" else ""
        yield f"Start the service with `anchorage serve`, and search the store{until}:\n"
        yield (
            "Where the old encoder runs, pass its vectors of the inputs too, as `old_queries`.\n"
        )
        old = f'anchor_set="{answer["anchor_set"]}"'
        call = (
            f'rankings = client.stores.search("{answer["store"]}", target="{answer["target"]}", '
            f'inputs=["a question"], {old}, native=20)\nprint(rankings.results[0].ids)'
        )
    else:
        yield "Start the service with `anchorage serve`, and translate:\n"
        call = f"translated = client.translate(vectors, {pair}).vectors"
    yield "```python"
    yield "from anchorage_client import Client\n"
    yield 'client = Client("http://127.0.0.1:8080")'
    yield call
    yield "```\n"
    yield "`anchorage doctor` checks the deployment. The console shows the pair at /console.\n"
