"""How smooth the console's map is with 20,000 items: 40,000 points, panned and zoomed by the mouse.

A real server computes the map, and Debian's Chromium draws it: with the way that the page chooses,
with WebGL2, and with the 2D canvas that the page chooses where WebGL2 is missing or slow. Without
a GPU the browser runs WebGL2 on the CPU.

    pip install playwright      # and Debian's package `chromium`
    python -m benchmarks.console_map

Reads `encoders/emb/` below ANCHORAGE_DATA, the vectors of 19,035 sentences by two
encoders; the other items are midpoints of two of them. Without that folder, all items are drawn
from a synthetic space.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any

import httpx2
import numpy as np

from benchmarks.common import DATA, RESULTS, Missing, machine, parser, rounded, write
from benchmarks.scaling.data import Matrix
from benchmarks.service import Connection, make_set, register, serve

ITEMS = 20_000
SOURCE, TARGET, SET = "minilm6-384", "static-256", "items"
QUERY = f"anchor_set={SET}&source={SOURCE}&target={TARGET}"

#: longest wait for the points, in seconds
FIT_S = 900
#: runs of each way, of which the one in the middle counts
RUNS = 3
#: seconds that the mouse pans and zooms in each
MEASURED_S = 5.0
WIDTH, HEIGHT = 1280, 900
#: device pixels per CSS pixel
RATIOS = (1, 2)
#: queries of the page: the better way to draw, and each way
RENDERERS = {"chosen": "", "webgl2": "&renderer=webgl2", "2d": "&renderer=2d"}
#: mouse events that the browser has not answered yet
MOST_EVENTS = 3
#: seconds between two mouse events
EVENT_S = 0.008

#: counts the drawings, and the times at which the browser asks for a frame
PROBE = """
window.drawn = 0;
for (const [type, name] of [
  [WebGL2RenderingContext, "drawArrays"], [CanvasRenderingContext2D, "putImageData"],
]) {
  const draw = type.prototype[name];
  type.prototype[name] = function (...values) { window.drawn++; return draw.apply(this, values); };
}
window.record = () => {
  window.drawn = 0;
  window.frames = [];
  const next = (now) => { window.frames.push(now); requestAnimationFrame(next); };
  requestAnimationFrame(next);
};
"""


def find_chromium() -> str:
    """The path of the browser. Raises Missing."""
    path = which("chromium")
    if path is None:
        raise Missing("there is no chromium: apt-get install chromium")
    return path


@asynccontextmanager
async def browse(ratio: float) -> AsyncIterator[Any]:
    """A page of a new browser. Raises Missing."""
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise Missing("there is no playwright: pip install playwright") from None
    chromium = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = await browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=ratio
        )
        yield await context.new_page()
        await browser.close()


def draw_items() -> tuple[dict[str, Matrix], str]:
    """The vectors of the items by each encoder, and where they come from."""
    folder = DATA / "encoders" / "emb"
    if not folder.exists():
        return _synthetic(), "synthetic: two random projections of one hidden space, with noise"
    generator = np.random.default_rng(0)
    own = {name: _sentences(folder, name) for name in (SOURCE, TARGET)}
    count = len(own[SOURCE])
    ends = generator.integers(count, size=(2, ITEMS - count))
    vectors = {
        name: np.concatenate([rows, (rows[ends[0]] + rows[ends[1]]) / 2])
        for name, rows in own.items()
    }
    return vectors, f"{count:,} sentences of Banking77 and TREC, and midpoints of two of them"


def _sentences(folder: Path, encoder: str) -> Matrix:
    parts = []
    for corpus in ("banking77", "trec"):
        with np.load(folder / f"{corpus}.{encoder}.npz", allow_pickle=False) as file:
            parts += [file["train"], file["test"]]
    return np.concatenate(parts).astype(np.float32)[:ITEMS]


def _synthetic() -> dict[str, Matrix]:
    generator = np.random.default_rng(0)
    centres = 2 * generator.normal(size=(40, 64))
    hidden = centres[generator.integers(40, size=ITEMS)] + generator.normal(size=(ITEMS, 64))
    return {
        name: (
            hidden @ generator.normal(size=(64, dim)) + 2 * generator.normal(size=(ITEMS, dim))
        ).astype(np.float32)
        for name, dim in ((SOURCE, 384), (TARGET, 256))
    }


def middle_run(url: str, ratio: int) -> dict[str, Any]:
    """The run with the median number of frames: others use the machine too."""
    runs = [asyncio.run(measure(url, ratio)) for _ in range(RUNS)]
    return sorted(runs, key=lambda run: run["frames_per_s"])[RUNS // 2]


async def measure(url: str, ratio: int) -> dict[str, Any]:
    """Pan and zoom with the mouse, and return how often the browser drew."""
    async with browse(ratio) as page:
        await page.add_init_script(PROBE)
        await page.goto(url)
        await page.wait_for_selector(".map[data-count]", timeout=120_000)
        frame = page.locator(".map")
        await frame.scroll_into_view_if_needed()
        box = await frame.bounding_box()
        await page.wait_for_timeout(1_000)
        await page.evaluate("record()")
        seconds = await move_mouse(page, box)
        drawn, times = await page.evaluate("[drawn, frames]")
        steps = np.diff(times)
        return {
            "renderer": await frame.get_attribute("data-renderer"),
            "items": int(await frame.get_attribute("data-count")),
            "canvas": await page.locator(".map canvas").evaluate("c => [c.width, c.height]"),
            "ratio": ratio,
            "drawn_per_s": drawn / seconds,
            "frames_per_s": 1000 / float(steps.mean()),
            "frame_ms": {
                "median": float(np.median(steps)),
                "p95": float(np.quantile(steps, 0.95)),
                "largest": float(steps.max()),
            },
            "chromium": page.context.browser.version,
            "load": os.getloadavg()[0],
        }


async def move_mouse(page: Any, box: dict[str, float]) -> float:
    """Pan in circles, and zoom in and out; return the seconds that it took."""
    across, down = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    events: set[asyncio.Task[None]] = set()
    await page.mouse.move(across, down)
    await page.mouse.down()
    start, turn, pressed = time.monotonic(), 0, True
    while (now := time.monotonic() - start) < MEASURED_S:
        turn += 1
        panning = now % 2 < 1
        if panning != pressed:
            await (page.mouse.down if panning else page.mouse.up)()
            pressed = panning
        angle = turn / 20
        events.add(
            asyncio.create_task(
                page.mouse.move(across + 120 * math.cos(angle), down + 90 * math.sin(angle))
                if panning
                else page.mouse.wheel(0, -20 if now % 4 < 2 else 20)
            )
        )
        await asyncio.sleep(EVENT_S)
        while len(events) > MOST_EVENTS:
            _, events = await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*events)
    await page.mouse.up()
    return time.monotonic() - start


def report_lines(report: dict[str, Any]) -> list[str]:
    """The table of `docs/results/console-map.md`."""
    lines = [
        "| drawn with | screen | frames per s | drawings per s | median frame, ms | 95 %, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["rows"]:
        screen = f"{row['ratio']}x, {row['canvas'][0]} x {row['canvas'][1]} pixels"
        how = f"the page's choice: {row['renderer']}" if row["asked"] == "chosen" else row["asked"]
        frame = row["frame_ms"]
        lines.append(
            f"| {how} | {screen} | {row['frames_per_s']:.0f} | {row['drawn_per_s']:.0f} "
            f"| {frame['median']:.0f} | {frame['p95']:.0f} |"
        )
    return lines


def main() -> None:
    arguments = parser(__doc__, RESULTS / "console_map.json").parse_args()
    vectors, origin = draw_items()
    limits = {"max_vectors": ITEMS, "max_body_bytes": 2**28, "log_level": "warning"}
    with serve(**limits) as server:
        connection = Connection(server.port)
        register(connection, {name: rows.shape[1] for name, rows in vectors.items()})
        make_set(connection, SET, vectors)
        base = f"http://127.0.0.1:{server.port}/console/map"
        seconds = []
        for _ in range(2):
            start = time.monotonic()
            size = len(
                httpx2.get(f"{base}/points?{QUERY}", timeout=FIT_S).raise_for_status().content
            )
            seconds.append(time.monotonic() - start)
        rows = [
            {"asked": name, **middle_run(f"{base}?{QUERY}{query}", ratio)}
            for name, query in RENDERERS.items()
            for ratio in RATIOS
        ]
    report = {
        "about": "the console's map, panned and zoomed for 5 s by the mouse; the browser draws on "
        "the CPU, which also runs the server; frames come at most at 60 a second",
        "machine": machine(),
        "vectors": origin,
        "points": {"bytes": size, "first_s": seconds[0], "cached_s": seconds[1]},
        "rows": rows,
    }
    print(*report_lines(report), json.dumps(report["points"]), sep="\n")
    write(arguments.json, rounded(report, 2))


if __name__ == "__main__":
    main()
