"""`anchorage encoders check`, for an endpoint that replaces its model silently."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_commands import run, said
from tests.encoders.models.remote.endpoints import FakeEndpoint


def test_a_model_that_moves_by_one_percent_is_found(tmp_path: Path) -> None:
    items = tmp_path / "items.txt"
    items.write_text("".join(f"item {number}\n" for number in range(40)))
    with FakeEndpoint() as endpoint:
        settings = {"remote_urls": endpoint.url}

        def call(*arguments: str, ends: int = 0) -> str:
            result = run(tmp_path, *arguments, **settings)
            assert result.exit_code == ends, result.output
            return said(result.output)

        model = ("--kind", "openai", "--model", "truth", "--endpoint", endpoint.url)
        call("encoders", "add", "ada", *model)
        call("anchors", "add", "faq", "--inputs", str(items), "--encoders", "ada")
        assert "ada: unchanged." in call("encoders", "check", "ada")
        endpoint.moved = 0.01
        found = call("encoders", "check", "ada", ends=1)
        assert "ada: moved." in found
        assert "register the model as it is now by another name" in found
