"""Every block of code in the pages runs, in order, against a service of the page's own.

- sh blocks run in bash, python blocks share one namespace, and localhost:8080 is that service.
- text blocks are output or illustrations, and a question gets the answer `y`.
- `<!--- skip: next "reason" -->` above a block keeps it from running.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import httpx2
import psycopg
import pytest
import yaml
from langchain_postgres import PGVector
from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

from anchorage_client import Client
from tests.docs.setup import SETUP
from tests.pgvector_server import pgvector_server_of_process
from tests.stores.cases import milvus_server

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^ *```(\S*)", re.MULTILINE)
RUN = re.compile(r"^ *```(?:sh|python)$", re.MULTILINE)
SKIPPED = re.compile(r"skip: next[^\n]*\n+ *```(?:sh|python)$", re.MULTILINE)
LANGUAGES = {"sh", "python", "yaml", "text"}
PAGES = [
    str(page.relative_to(ROOT))
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "clients/python/README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
    )
    if "```" in page.read_text(encoding="utf-8")
]
#: pages whose blocks every run executes, because a new user starts with them
FIRST = {
    "README.md",
    "docs/tutorial.md",
    *(
        f"docs/how-to/{name}.md"
        for name in ("classifier", "langchain", "migrate", "search-a-store")
    ),
}
#: the databases of a page's reader
DATABASE = "://app:secret@localhost:5432/shop"
MILVUS = "http://localhost:19530"
#: the addresses of stores in a page, in the folder `/srv` of the reader
STORES = re.compile(r"\bANCHORAGE_STORES='(.*?)'")
#: what a block may set for later blocks: its variables in small letters
KEPT = "declare -p | grep -E '^declare -[-x]+ [a-z][a-z_0-9]*=' > state || true"


class Page:
    """How the blocks of one page run: in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shell(self, example: Example) -> None:
        """Run a block. It fails on an error answer."""
        text = str(example.parsed)
        (self.folder / "state").touch()
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", f". ./state\n{text}\n{KEPT}"],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            input="y\n" * 9,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert not re.search(r'"status": ?[45]\d\d', done.stdout), done.stdout


def parse_yaml(example: Example) -> None:
    yaml.safe_load(example.parsed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FIRST else pytest.mark.long) for name in PAGES],
)
def test_the_blocks_of_a_page_run(name, listen, tmp_path, monkeypatch):
    text = (ROOT / name).read_text(encoding="utf-8")
    address = "localhost:8080"
    folder = tmp_path / "page"
    folder.mkdir()
    if DATABASE in text:
        text = text.replace(DATABASE, pgvector_server_of_process().url.removeprefix("postgresql"))
    if MILVUS in text:
        text = text.replace(MILVUS, milvus_server.shared_server())
    text = text.replace("/srv/", f"{folder}/")
    listed = STORES.search(text)
    stores = {**json.loads(listed[1] if listed else "{}"), "shop": str(folder / "shop")}
    if len(RUN.findall(text)) > len(SKIPPED.findall(text)):
        address = ":".join(map(str, listen(max_vectors=16_384, stores=stores)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANCHORAGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("ANCHORAGE_URL", f"http://{address}")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    copy = folder / "page.md"
    copy.write_text(text.replace("localhost:8080", address), encoding="utf-8")
    page = Page(folder)
    if name in SETUP:
        with Client(f"http://{address}") as client:
            SETUP[name](client, folder)
    document = Document.parse(
        str(copy),
        SkipParser(),
        CodeBlockParser("sh", page.shell),
        CodeBlockParser("yaml", parse_yaml),
        PythonCodeBlockParser(),
    )
    try:
        for example in document.examples():
            with suppress(SkipTest):
                example.evaluate()
    finally:
        for value in document.namespace.values():
            if isinstance(value, httpx2.Client | psycopg.Connection | Client):
                value.close()
            elif isinstance(value, PGVector):
                value._engine.dispose()


@pytest.mark.parametrize("name", PAGES)
def test_each_block_has_a_language(name):
    found = FENCED.findall((ROOT / name).read_text(encoding="utf-8"))
    assert set(found[::2]) <= LANGUAGES
    assert set(found[1::2]) <= {""}
