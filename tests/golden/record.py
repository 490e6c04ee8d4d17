"""Send the golden requests to an embedded service, and write or compare the answers.

`python -m tests.golden.record` writes `answers.json` and `openapi.json`. It sends all requests
twice, to two services; what differs (times, random ids) is written as "<varies>".
"""

from __future__ import annotations

import base64
import io
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from safetensors.torch import load
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings, StoreEntry
from tests.golden.steps import NPY, Step, _real, steps
from tests.waiting import slack

ANSWERS = Path(__file__).with_name("answers.json")
OPENAPI = Path(__file__).with_name("openapi.json")
VARIES = "<varies>"
#: what processors compute differently, because a draw follows another number's last bit
PROCESSOR = {
    "bootstrap by self-learning": (
        ("confidence",),
        ("estimate", "by_chance"),
        ("estimate", "right"),
        ("facts", "right"),
    )
}
#: numbers are equal to this, relative to the larger of 1 and their size
TOLERANCE = 1e-5


def service(folder: Path) -> TestClient:
    """An embedded service with one LanceDB store that holds 400 real rows."""
    url = str(folder / "lance")
    rows = _real()["a"][600:1000]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    texts = [f"text {row}" for row in range(len(rows))]
    table = pa.table({"id": list(range(len(rows))), "text": texts, "vector": vectors})
    lancedb.connect(url).create_table("docs", table)
    settings = Settings(data_dir=folder / "data", stores={"main": StoreEntry(url=url)})
    return TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    )


def replay() -> dict[str, Any]:
    """The answers of all steps by name, and the OpenAPI document."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as client:
        kept: dict[str, str] = {}
        for step in steps():
            answer = _send(client, step, kept)
            kept |= {
                key: answer.json()[field] for key, field in step.keep.items() if answer.is_success
            }
            answers[step.name] = recorded(_end_of_job(client, answer) if step.job else answer)
        answers["openapi"] = client.get("/openapi.json").json()
    return answers


def _send(client: TestClient, step: Step, kept: dict[str, str]) -> Any:
    path = re.sub(r"\{(\w+)\}", lambda match: kept.get(match[1], "missing"), step.path)
    more = {"json": step.json} if step.json is not None else {"content": step.content}
    return client.request(step.method, path, headers=dict(step.headers), **more)


def _end_of_job(client: TestClient, answer: Any) -> Any:
    """The answer about the job that `answer` started, once it has ended."""
    if answer.status_code != 202:
        return answer
    path = answer.headers["location"]
    deadline = time.monotonic() + 300 * slack()
    while True:
        job = client.get(path)
        state = job.json().get("state")
        if state not in ("queued", "running", "planning"):
            return job
        assert time.monotonic() < deadline, job.text
        time.sleep(0.1)


def recorded(answer: Any) -> Any:
    """What is compared: status and body; of an error its code and fields, not the wording."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if kind == "application/problem+json":
        problem = answer.json()
        places = {key: problem[key] for key in ("field", "rows", "errors") if key in problem}
        return {"status": answer.status_code, "code": problem["code"], **_places(places)}
    body: Any = answer.text
    if kind == "application/json" and answer.content:
        body = answer.json()
        encoded = body.get("vectors") if isinstance(body, dict) else None
        if isinstance(encoded, dict) and "base64" in encoded:
            numbers = np.frombuffer(base64.b64decode(encoded["base64"]), encoded["dtype"])
            encoded["base64"] = numbers.tolist()
    elif kind == NPY:
        body = np.load(io.BytesIO(answer.content), allow_pickle=False)
        body = {"dtype": str(body.dtype), "rows": body.tolist()}
    elif kind == "application/octet-stream":
        body = {
            name: [list(each.shape), float(each.double().abs().sum())]
            for name, each in load(answer.content).items()
        }
    if isinstance(body, dict):
        _order(body)
    return {"status": answer.status_code, "type": kind, "body": body}


def _order(body: dict[str, Any]) -> None:
    """Order what is ordered by hashes, and leave out explanations that are equally far away."""
    if "translators" in body:
        names = ("source", "target", "anchor_set", "method", "options")
        body["translators"].sort(key=lambda each: json.dumps([each[name] for name in names]))
    if "explanations" in body:
        del body["explanations"][7:]


def _places(places: dict[str, Any]) -> dict[str, Any]:
    """Places of errors without their wording."""
    errors = places.get("errors")
    if isinstance(errors, list):
        kept = ("field", "rows", "code", "loc")
        places["errors"] = [{key: each[key] for key in kept if key in each} for each in errors]
    return places


def merged(first: Any, second: Any) -> Any:
    """The first answer, with "<varies>" where the second differs."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: merged(first[key], second[key]) if key in second else VARIES for key in first}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [merged(*each) for each in zip(first, second, strict=True)]
    return first if not list(differences(first, second)) else VARIES


def differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Where `found` differs from `expected`, one line a difference."""
    if expected == VARIES or place.endswith(
        ("/created", "/progress/done", "/progress/total", "/seconds")
    ):
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}, key=str):
            below = f"{place}/{key}"
            if key not in found:
                yield f"{below}: missing, expected {_short(expected[key])}"
            elif key not in expected:
                yield f"{below}: new, {_short(found[key])}"
            else:
                yield from differences(expected[key], found[key], below)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for row, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{place}/{row}")
    elif not _equal(expected, found):
        yield f"{place}: {_short(found)}, expected {_short(expected)}"


def _equal(expected: Any, found: Any) -> bool:
    numbers = (int, float)
    if isinstance(expected, str) and isinstance(found, str) and expected.startswith("tr_"):
        # The id of a translator is a hash of its bits, which depend on the processor.
        return found.startswith("tr_")
    if isinstance(expected, numbers) and isinstance(found, numbers):
        return abs(expected - found) <= TOLERANCE * max(1.0, abs(expected))
    return bool(expected == found)


def parts_of_openapi(document: dict[str, Any]) -> dict[str, Any]:
    """The document's routes and schemas, each by its name."""
    routes = {
        f"{method.upper()} {path}": operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    return {"routes": routes, "schemas": document["components"]["schemas"]}


def _by_line(document: dict[str, Any]) -> str:
    """The document with one line for each route and each schema, so that a change can be read."""
    blocks = []
    for name, part in parts_of_openapi(document).items():
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
            for key, value in sorted(part.items())
        ]
        blocks.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:160] + " ..."


def main() -> None:
    """Record the answers of the code as it is."""
    first, second = replay(), replay()
    openapi = first.pop("openapi")
    second.pop("openapi")
    for name, places in PROCESSOR.items():
        for *above, last in places:
            part = first[name]["body"]["result"]
            for key in above:
                part = part[key]
            part[last] = VARIES
    lines = [
        f"{json.dumps(name)}: {json.dumps(merged(first[name], second[name]))}" for name in first
    ]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    OPENAPI.write_text(_by_line(openapi))
    counts = [each["status"] for each in first.values()]
    print(f"{len(first)} requests, {sum(200 <= each < 300 for each in counts)} accepted")


if __name__ == "__main__":
    main()
