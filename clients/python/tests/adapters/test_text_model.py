from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from anchorage_client import UnavailableError
from anchorage_client.adapters.text_model import TextModel

FRAMEWORKS = ("dspy", "haystack", "langchain_core", "llama_index", "sklearn")
OTHERS = ("psycopg", "qdrant_client", "torch")


def imported(*modules: str) -> set[str]:
    """The frameworks that a new process has loaded after an import of the modules."""
    script = (
        f"import sys, {', '.join(modules)}; print(*(set({FRAMEWORKS + OTHERS}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_a_module_imports_its_own_framework_only():
    for module in ("encode", "text_model"):
        assert imported(f"anchorage_client.adapters.{module}", "anchorage_client.cascade") == set()
    own = {"langchain": "langchain_core", "llamaindex": "llama_index"}
    for module, framework in own.items():
        pytest.importorskip(framework)
        found = imported(
            f"anchorage_client.adapters.{module}", f"anchorage_client.cascade.{module}"
        )
        assert found & set(FRAMEWORKS) == {framework}


def test_batches_become_one_matrix_and_a_closed_connection_opens_again(texts):
    model = TextModel("new", url=texts.url, batch_size=3)
    few = texts.sentences[:8]
    expected = texts.client.embed(few, model="new")
    np.testing.assert_allclose(model.embed(few, "document"), expected, rtol=0, atol=1e-5)
    model.close()
    np.testing.assert_allclose(model.embed(few, "document"), expected, rtol=0, atol=1e-5)
    first = model.client
    assert model.client is first
    del model
    with pytest.raises((RuntimeError, UnavailableError)):
        first.ready()  # it was closed with its model
