"""The picture of rounds is drawn from a release of the shipped data, and its caption states what the release shows."""

import numpy as np

from docs.diagrams import IMAGES
from docs.rounds_picture import draw, released_rounds
from dpca_tasks.mechanisms.noise_level import edge_quantile
from flows.reports.release_charts import THEMES, render
from tests.docs.reader import DOCS


def test_the_picture_and_its_caption_equal_the_release() -> None:
    found = released_rounds()
    for theme in THEMES:
        assert (IMAGES / f"rounds-{theme}.svg").read_bytes() == render(draw(found, theme=theme))
    above = []
    for answer in found.answers:
        order = len(answer.map.directions)
        values = np.linalg.eigvalsh(answer.released[:order, :order])
        above.append(int((values > answer.noise_std * edge_quantile(order)).sum()))
    stated = f"{above[0]}, {above[1]} and {above[2]} of them are above the band"
    assert (DOCS / "how-to" / "rounds.md").read_text(encoding="utf-8").count(stated) == 2
