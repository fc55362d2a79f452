"""Diagrams of the documentation: each is drawn from its description, in light and dark, and each is on a page."""

import re

import pytest

from docs.diagrams import DIAGRAMS, IMAGES, draw
from flows.reports.release_charts import THEMES, render
from tests.docs.reader import DOCS


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_stored_diagram_equals_the_drawn_one(name: str) -> None:
    for theme in THEMES:
        assert (IMAGES / f"diagram-{name}-{theme}.svg").read_bytes() == render(draw(DIAGRAMS[name], theme=theme))


def test_each_diagram_is_on_a_page_in_both_themes_with_a_text_alternative() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name, diagram in DIAGRAMS.items():
        for inspect in THEMES:
            assert re.search(rf"images/diagram-{name}-{inspect}\.svg\n:alt: {re.escape(diagram.title)}\.\n", pages), (
                name
            )
    assert len(DIAGRAMS) >= 8


def test_arrows_and_areas_join_boxes_that_exist() -> None:
    for diagram in DIAGRAMS.values():
        boxes = {name for row in diagram.rows for name in row}
        named = {end for start, stop, _ in diagram.arrows for end in (start, stop)}
        assert named | {name for names in diagram.areas.values() for name in names} <= boxes
