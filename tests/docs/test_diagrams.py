"""Diagrams and pictures of the documentation: each is drawn from its description, and its page states what it shows.

Releases on two machines can differ in their last digits, and the noise of a later round is drawn for the exact map. So
pictures of releases are compared by their numbers instead of their files.
"""

import re

import numpy as np
import pytest

from docs import warm_picture
from docs.diagrams import DIAGRAMS, IMAGES, draw
from docs.rounds_picture import draw as draw_rounds
from docs.rounds_picture import released_rounds
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


DIFFERENCE = 4
"""The largest difference between two machines in the number of eigenvalues above the noise."""


def counts_of(picture: bytes) -> list[int]:
    """Return the numbers of eigenvalues above the noise in the panels' titles."""
    return [int(number) for number in re.findall(r"Round \d: (\d+) above noise", picture.decode())]


def test_the_caption_states_what_the_picture_shows() -> None:
    shown = [counts_of((IMAGES / f"rounds-{theme}.svg").read_bytes()) for theme in THEMES]
    first, second, third = shown[0]
    assert shown == [shown[0]] * len(THEMES)
    stated = f"{first}, {second} and {third} of them are above the band"
    assert (DOCS / "how-to" / "rounds.md").read_text(encoding="utf-8").count(stated) == 2


def test_the_picture_shows_a_release_of_the_shipped_data() -> None:
    released = counts_of(render(draw_rounds(released_rounds(), theme="light")))
    assert released == pytest.approx(counts_of((IMAGES / "rounds-light.svg").read_bytes()), abs=DIFFERENCE)


@pytest.mark.audit_only
def test_the_guide_states_what_the_picture_shows() -> None:
    one, three, warm = (np.mean(each.months[2:]) for each in warm_picture.released_months())
    text = " ".join((DOCS / "how-to" / "better-every-month.md").read_text(encoding="utf-8").split())
    stated = re.search(
        r"One round captures about (\.\d+), and three rounds (\.\d+)\. .*? capture about (\.\d+)\.", text
    )
    assert stated is not None
    assert [one, three, warm] == pytest.approx([float(each) for each in stated.groups()], abs=0.008)
