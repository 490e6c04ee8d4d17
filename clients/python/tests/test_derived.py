"""The synchronous client is derived, and a user's script passes mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.unasync import derived

CLIENT = Path(__file__).parents[1]

SCRIPT = """
import asyncio
from pathlib import Path

import numpy as np
from anchorage_client import AnchorageError, AsyncClient, Client, LocalTranslator

old, new = np.load("old.npy"), np.load("new.npy")

with Client("http://127.0.0.1:8080", api_key="anc_...") as client:
    client.encoders.create("old", dim=old.shape[1])
    client.encoders.create("new", dim=new.shape[1])
    client.anchor_sets.create("faq", embeddings={"old": old, "new": new})
    translator = client.translator(source="old", target="new", anchor_set="faq")
    at_home: np.ndarray = translator.apply_locally(old)
    translator.save_safetensors(Path("translator.safetensors"))
    LocalTranslator.load("translator.safetensors").apply(old).outside.any()
    for batch in client.translate_stream(old, source="old", target="new", anchor_set="faq"):
        batch.mean()
    pools = {"source_pool": old, "target_pool": new}
    client.bootstrap("found", source="old", target="new", **pools, as_job=True).wait(progress=True)
    fitted = client.translator(source="old", target="new", anchor_set="faq", as_job=True)
    fitted.wait(progress=lambda progress: print(progress["done"])).apply_locally(old)
    client.anchor_sets.create("faq", inputs=["a"], encoders=["new"], as_job=True).cancel()
    try:
        client.advice(source="old", target="new", anchor_set="faq")["advice"]
    except AnchorageError as error:
        print(error.code, error.field, error.rows)


async def main() -> list[int]:
    async with AsyncClient() as remote:
        found = await remote.rescore(
            source="old", target="new", anchor_set="faq",
            queries=new, candidates=[{"ids": [1, 2], "vectors": old[:2]}],
        )
    return [ranking.ids[0] for ranking in found]


asyncio.run(main())
"""

#: mistakes that mypy must find
WRONG = """
from anchorage_client import Client

client = Client()
client.translator(source="old", target="new")
client.embed(["text"], model="new", role="reader")
vectors: str = client.translate([[1.0]], source="a", target="b", anchor_set="c").vectors
"""


def mypy(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Check a script with the settings of `make lint`, whose cache saves a minute."""
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "mypy", str(folder / "script.py")],
        cwd=CLIENT.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_synchronous_client_is_up_to_date():
    wrong = [path.name for path, text in derived().items() if path.read_text() != text]
    assert wrong == [], "run `python -m scripts.unasync`"


@pytest.mark.long
def test_a_users_script_passes_mypy(tmp_path: Path):
    done = mypy(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stdout
    wrong = mypy(tmp_path, WRONG).stdout
    assert [f"script.py:{line}: error" in wrong for line in (5, 6, 7)] == [True] * 3, wrong
