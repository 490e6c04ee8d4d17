"""The lint of language finds hard sentences in pages and in code, and passes plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import lint_language

HARD = [
    "It waits for so long at most.",
    "The vectors, of which nobody reads the norms.",
    "What is not known is estimated.",
    "The client is told the row.",
    "The job goes on from the checkpoint.",
]
PLAIN = [
    "It waits for 60 seconds at most.",
    "So many clients connected that the server refused the last one.",
    "The client receives the number of the row, which starts at 0.",
    "The job continues from the checkpoint. Write `so many` as code.",
]


def found(file: Path, text: str) -> list[tuple[int, str, str]]:
    file.write_text(text)
    return list(lint_language.findings(file))


@pytest.mark.parametrize("sentence", HARD)
def test_a_hard_sentence_is_found(sentence: str, tmp_path: Path) -> None:
    assert found(tmp_path / "page.md", f"# Title\n\n{sentence}\n")[0][0] == 3
    assert found(tmp_path / "docstring.py", f'"""Module.\n\n{sentence}\n"""\n')[0][0] == 3
    assert found(tmp_path / "comment.py", f"x = 1\n# {sentence}\n")[0][0] == 2
    assert found(tmp_path / "message.py", f'x = 1\nprint(f"{{x}}: {sentence}")\n')[0][0] == 2


@pytest.mark.parametrize("sentence", PLAIN)
def test_a_plain_sentence_passes(sentence: str, tmp_path: Path) -> None:
    assert found(tmp_path / "page.md", f"# Title\n\n{sentence}\n") == []
    assert found(tmp_path / "docstring.py", f'"""{sentence}"""\n') == []


def test_a_phrase_is_found_over_a_line_break(tmp_path: Path) -> None:
    assert found(tmp_path / "page.md", "The service waits for so\nlong.\n")[0][:2] == (1, "so long")
    assert found(tmp_path / "comment.py", "# The service waits for so\n# long.\n")[0][0] == 1


def test_code_links_and_marked_examples_are_no_prose(tmp_path: Path) -> None:
    code = "```\nso many\n```\n`so many` [a](so-many.md)\n"
    marked = "<!-- language: off -->\nso many\n<!-- language: on -->\n"
    assert found(tmp_path / "page.md", code + marked) == []


def test_the_command_prints_each_finding_and_fails(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("It waits for so long.\n")
    assert lint_language.main([str(page)]) == 1
    assert f"{page}:1: 'so long': " in capsys.readouterr().out
    page.write_text("It waits for 60 s.\n")
    assert lint_language.main([str(tmp_path)]) == 0
