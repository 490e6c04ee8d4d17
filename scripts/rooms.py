"""Draws the rooms of the code with their lines: `python -m scripts.rooms` writes the picture.

`tests/test_budget.py` holds each room to its budget.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"

#: the floors from top to bottom; each room with the most lines that it may have and what it holds
FLOORS: list[tuple[str, dict[str, tuple[int, str]]]] = [
    (
        "entry points",
        {
            "app/cli": (1_970, "the command"),
            "app/demo": (430, "make demo"),
            "app/console": (1_070, "pages for a browser"),
            "workers": (252, "run jobs, know no HTTP"),
        },
    ),
    (
        "nouns",
        {
            "app/encoders": (2_600, "models that make vectors"),
            "app/anchors": (2_200, "items by several models"),
            "app/bootstrap": (900, "anchors from few pairs"),
            "app/translate": (3_700, "vectors of another model"),
            "app/heads": (950, "classifiers on vectors"),
            "app/search": (3_600, "an index, by a new model"),
            "app/stores": (6_000, "vector databases"),
            "app/moves": (2_800, "migrations of stores"),
            "app/openai": (400, "the API of OpenAI"),
            "app/bulk": (600, "files of vectors"),
        },
    ),
    (
        "jobs, which stand on access",
        {
            "app/jobs": (1_300, "a queue in SQL, workers"),
            "app/access": (430, "keys, projects, audit"),
        },
    ),
    (
        "foundations",
        {
            "app/http": (2_250, "what every request passes"),
            "app/db": (2_000, "rows, blobs, cache, Redis"),
            "app/ops": (700, "health, metrics, logs"),
            "app/maths": (6_800, "functions of tensors"),
            "app": (1_700, "wiring, settings, errors"),
        },
    ),
]
ROOMS = {path: budget for _, rooms in FLOORS for path, (budget, _) in rooms.items()}
#: rooms that are above their budgets, with the most lines that they may have until they are smaller
OVER = {
    "app": 1_704,
    "app/encoders": 3_296,
    "app/moves": 3_780,
    "app/openai": 758,
    "app/stores": 7_850,
}

WIDTH, ACROSS, HEIGHT = 860, 4, 62
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b2430; }
.name { font: 600 13px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; }
.note { font-size: 12px; fill: #4a5666; }
.floor { fill: #e3eefb; stroke: #9fb0c3; }
.box { fill: #fff; stroke: #b7c4d3; }
"""


def lines_of(room: str) -> int:
    """Returns the lines of a room's Python files; those of `app` lie in no room."""
    folder = ROOT / room
    files = folder.glob("*.py") if room == "app" else folder.rglob("*.py")
    return sum(path.read_text().count("\n") for path in files)


def draw() -> str:
    """Returns the picture as SVG."""
    parts, top = [], 16
    for title, rooms in FLOORS:
        rows = -(-len(rooms) // ACROSS)
        parts += [
            f'<rect class="floor" x="16" y="{top}" width="{WIDTH - 32}" '
            f'height="{34 + rows * (HEIGHT + 8)}" rx="6"/>',
            f'<text class="note" x="30" y="{top + 21}">{escape(title)}</text>',
        ]
        for place, (path, (_, words)) in enumerate(rooms.items()):
            x = 28 + (place % ACROSS) * 203
            y = top + 32 + (place // ACROSS) * (HEIGHT + 8)
            parts += [
                f'<rect class="box" x="{x}" y="{y}" width="194" height="{HEIGHT}" rx="4"/>',
                f'<text class="name" x="{x + 10}" y="{y + 21}">{path}</text>',
                f'<text class="note" x="{x + 10}" y="{y + 38}">{escape(words)}</text>',
                f'<text class="note" x="{x + 10}" y="{y + 54}">{lines_of(path):,} lines</text>',
            ]
        top += 34 + rows * (HEIGHT + 8) + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" role="img">\n<title>The rooms of Anchorage; each imports only rooms of '
        f"lower floors</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{top}" rx="8" fill="#f7f9fc"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
