"""Debian's control files become documents, queries and what people judged relevant."""

from __future__ import annotations

from benchmarks.relevance import debtags

PACKAGES = """Package: alpha
Tag: field::astronomy, role::program,
 use::viewing

Package: beta
Tag: field::astronomy

Package: gamma
Version: 1
"""
TRANSLATIONS = """Package: alpha
Description-en: Sky viewer
 Shows the stars.
 .
 And the planets.

Package: beta
Description-en: Telescope control
 Moves a telescope.

Package: beta-data
Description-en: Telescope control
 Moves a telescope.

Package: gamma
Description-en: Has no tags
 Is left out.
"""
VOCABULARY = """Facet: field
Description: Field

Tag: field::astronomy
Description: Astronomy
 Stars and planets.

Tag: field::TODO
Description: Need an extra tag

Facet: role
Description: Role

Tag: role::program
Description: Program
"""


def test_a_tag_is_a_query_and_its_packages_are_relevant(tmp_path, monkeypatch):
    for name, text in (
        ("Packages", PACKAGES),
        ("Translation-en", TRANSLATIONS),
        ("vocabulary", VOCABULARY),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(debtags, "FOLDER", tmp_path)
    monkeypatch.setattr(debtags, "FEWEST_RELEVANT", 2)
    texts = debtags.load()
    assert sorted(texts.documents) == [
        "Sky viewer. Shows the stars. And the planets.",
        "Telescope control. Moves a telescope.",
    ]
    assert texts.queries == ["Field: Astronomy. Stars and planets."]
    assert sorted(texts.relevance) == [(0, 0, 1), (0, 1, 1)]
