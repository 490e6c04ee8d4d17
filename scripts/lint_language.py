"""Finds words that mark a hard sentence: see docs/style.md. The expressions are in language.txt.

    python scripts/lint_language.py [PATH ...]

Reads Markdown files, and the docstrings, comments and strings of Python files. Prints one line for
each finding, and exits with 1 if there are any. Without paths it reads the product and its pages.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

RULES = Path(__file__).with_name("language.txt")
PATHS = (
    "app",
    "workers",
    "docs",
    "clients/python/anchorage_client",
    "clients/python/README.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)

#: parts of a page that are not prose: code, link targets, and examples between the two markers
NOT_PROSE = re.compile(
    r"<!-- language: off -->.*?<!-- language: on -->|^ *```.*?^ *```|`[^`\n]*`|\]\([^)\s]*\)",
    re.DOTALL | re.MULTILINE,
)


def rules() -> list[tuple[re.Pattern[str], str]]:
    """Each expression with its advice."""
    lines = [line for line in RULES.read_text().splitlines() if not line.startswith("#")]
    pairs = (re.split(r" {2,}", line, maxsplit=1) for line in lines)
    return [
        (re.compile(words.replace(" ", r"\s+"), re.I | re.M), advice) for words, advice in pairs
    ]


def prose(text: str) -> str:
    """The text without its code; lines keep their numbers."""
    return NOT_PROSE.sub(lambda match: "`" + "\n" * match[0].count("\n"), text)


def literals(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and strings of a module, each with its first line."""
    nodes = list(ast.walk(ast.parse(source)))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for string in formatted:
        values = [part.value if isinstance(part, ast.Constant) else "`" for part in string.values]
        yield string.lineno, "".join(map(str, values))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, prose(node.value)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """The comments of a module; those on consecutive lines are one text."""
    first, lines = 0, list[str]()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    for token in (token for token in tokens if token.type == tokenize.COMMENT):
        if lines and token.start[0] != first + len(lines):
            yield first, "\n".join(lines)
            lines = []
        first = first if lines else token.start[0]
        lines.append(prose(token.string.lstrip("#: ")))
    yield first, "\n".join(lines)


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, words and advice of each finding in a file, by line."""
    source = path.read_text(encoding="utf-8")
    code = [*literals(source), *comments(source)] if path.suffix == ".py" else []
    texts = code or [(1, prose(source))]
    found = {
        (first + text.count("\n", 0, match.start()), " ".join(match[0].split()), advice)
        for pattern, advice in rules()
        for first, text in texts
        for match in pattern.finditer(text)
    }
    yield from sorted(found)


def files(paths: Sequence[str]) -> Iterator[Path]:
    """The Markdown and Python files below the paths."""
    for path in map(Path, paths or PATHS):
        found = path.rglob("*") if path.is_dir() else [path]
        yield from sorted(file for file in found if file.suffix in (".md", ".py"))


def main(paths: Sequence[str]) -> int:
    """Prints the findings. Returns the exit status."""
    found = [(file, *finding) for file in files(paths) for finding in findings(file)]
    for file, line, words, advice in found:
        print(f"{file}:{line}: {words!r}: {advice}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
