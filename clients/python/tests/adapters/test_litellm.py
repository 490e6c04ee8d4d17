"""Programs that speak OpenAI's API, such as LiteLLM, need no adapter: an alias is their model.

LiteLLM leaves sockets and an event loop open, so it runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("litellm"):
    pytest.skip("litellm is not installed", allow_module_level=True)

SCRIPT = """
import asyncio, json, sys
import litellm

names, texts = json.load(sys.stdin)
answer = litellm.embedding(input=texts, **names)
query = litellm.embedding(input=texts, extra_body={"input_type": "query"}, **names)
later = asyncio.run(litellm.aembedding(input=texts, **names))
try:
    litellm.embedding(input=texts, **{**names, "model": "openai/missing"}, num_retries=0)
except litellm.exceptions.NotFoundError as error:
    missing = str(error)
rows = [[row["embedding"] for row in each.data] for each in (answer, query, later)]
print(json.dumps([*rows, answer.usage.prompt_tokens, missing]))
"""


def run(script: str, *about: Any) -> Any:
    """What a script prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(about),
        # no request for LiteLLM's list of prices
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def names(texts) -> Iterator[dict[str, str]]:
    """How LiteLLM calls the alias `search`."""
    texts.client.aliases.create("search", texts.translated)
    yield {
        "model": "openai/search",
        "api_base": f"{texts.url}/v1",
        "api_key": "anc_none",
        "encoding_format": "float",
    }
    texts.client.aliases.delete("search")


def test_litellm_embeds_with_an_alias(texts, names):
    few = texts.sentences[:4]
    answer, query, later, tokens, missing = run(SCRIPT, names, few)
    expected = texts.client.embed(few, model=texts.translated)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(later, expected, rtol=0, atol=1e-5)
    expected = texts.client.embed(few, model=texts.translated, role="query")
    np.testing.assert_allclose(query, expected, rtol=0, atol=1e-5)
    assert tokens > 0
    assert "missing" in missing
