"""Links between pages lead somewhere, and the pages speak of the project alone."""

from __future__ import annotations

import re

import pages

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Anchors of the headings as they are made for Markdown on the web."""
    headings = re.findall(r"^#+ (.*)$", pages.outside_blocks(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for page, text in pages.pages().items():
        for link in LINK.findall(pages.outside_blocks(text)):
            assert "://" not in link, "pages link to each other only"
            target, _, anchor = link.partition("#")
            path = pages.DOCS / (target or page)
            assert path.is_file(), path
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), anchor


def test_every_page_is_linked_from_the_index():
    assert set(LINK.findall(pages.pages()["README.md"])) == set(pages.pages()) - {"README.md"}


def test_pages_name_no_machine_and_no_issue():
    for page, text in pages.pages().items():
        assert not re.search(r"(?<![\w.$~])/(work|home|root|opt|tmp|venvs)\b", text), page
        assert not re.search(r"(^|\s)#\d+\b", text), page
