"""The picture of rounds shows a release of the shipped data, and its caption states what the picture shows.

Releases on two machines can differ: the last digits of a matrix product depend on the processor, and the noise of a
later round is drawn for the exact map. So the test compares numbers of eigenvalues instead of files.
"""

import re

import pytest

from docs.diagrams import IMAGES
from docs.rounds_picture import draw, released_rounds
from flows.reports.release_charts import THEMES, render
from tests.docs.reader import DOCS

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
    released = counts_of(render(draw(released_rounds(), theme="light")))
    assert released == pytest.approx(counts_of((IMAGES / "rounds-light.svg").read_bytes()), abs=DIFFERENCE)
