"""Charts of released numbers: what they say in words, and that they draw what they are given."""

import re
from typing import Any

import pytest

from flows.reports.charts import THEMES, render, theme_of
from flows.reports.release_charts import budget_chart, loadings_chart, scree_chart
from flows.reports.spectrum import Spectrum

VERDICT = "2 of 3 components stand above the noise; the subspace holds at least .93 of the variance that 3 could hold."
SEEN = Spectrum(eigenvalues=(160.0, 40.0, 10.0, 5.0, -1.0), n_components=3, noise_edge=12.0, verdict=VERDICT)
ROWS = [{"feature": "hours", "loading": 0.8}, {"feature": "age", "loading": -0.5}, {"feature": "pay", "loading": 0.1}]


def said(figure: Any) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", render(figure).decode())


def budget(*remaining: float | None, epsilon: float = 4.0, **more: Any) -> dict[str, Any]:
    releases = [
        {
            "release": f"{at:032x}",
            "mechanism": "analyze_gauss",
            "artifact": f"sub@{at}" if at > 1 else None,
            "remaining": left,
            "time": f"2026-03-{at:02d}T01:02:03+00:00",
        }
        for at, left in enumerate(remaining, start=1)
    ]
    charged = [left for left in remaining if left is not None]
    left = charged[-1] if charged else epsilon
    return {"population": "people", "epsilon": epsilon, "delta": 1e-6, "remaining": left, "releases": releases} | more


def test_a_scree_has_the_verdict_as_title_and_names_what_it_shows() -> None:
    figure = scree_chart(SEEN, name="sub@1")
    assert figure.get_label() == "2 of 3 components stand above the noise"
    words = said(figure)
    for text in (
        "2 of 3 components stand above the noise",
        "sub@1: the subspace holds at least .93 of the variance that 3 could hold",
        "2 components",
        "1 component within the noise",
        "2 within the noise",
        "noise alone stays below 12, 99 times in 100",
    ):
        assert text in words
    assert not any("more above" in word for word in words)


def test_a_scree_without_an_edge_says_that_nobody_knows_it_and_has_no_band() -> None:
    words = said(scree_chart(Spectrum(eigenvalues=(8.0, 4.0), n_components=1, noise_edge=None)))
    assert {"1 component", "1 more"} < set(words)
    assert not any("noise alone stays" in word for word in words)
    assert "2 eigenvalues were released, without a word on how far" in words


@pytest.mark.parametrize("values", [(-1.0, -2.0), (0.0,)])
@pytest.mark.parametrize("edge", [None, 10.0])
def test_a_spectrum_without_anything_to_draw_is_an_empty_picture(values: tuple[float, ...], edge: float | None) -> None:
    assert "component" not in " ".join(said(scree_chart(Spectrum(eigenvalues=values, n_components=1, noise_edge=edge))))


def test_a_release_of_noise_is_named_in_the_colour_of_a_warning() -> None:
    lost = Spectrum(eigenvalues=(8.0, 7.0), n_components=2, noise_edge=12.0)
    assert theme_of("light").against == scree_chart(lost).texts[0].get_color()
    assert theme_of("light").text == scree_chart(SEEN).texts[0].get_color()


def test_loadings_have_their_names_and_numbers_and_what_the_component_sets_apart() -> None:
    words = said(loadings_chart(ROWS, component=2, name="sub@1"))
    assert words[-2:] == [
        "Component 2: hours against age",
        "the 3 largest loadings make up 90 % of the component of sub@1",
    ]
    assert {"hours", "age", "pay", "+0.80", "−0.50", "+0.10"} < set(words)


def test_loadings_of_one_sign_move_together() -> None:
    assert loadings_chart(ROWS[::2], component=1).get_label() == "Component 1: hours and pay"
    assert loadings_chart([], component=1).get_label() == "Component 1: no feature stands out"


def test_a_burn_down_names_every_release_and_what_it_left() -> None:
    figure = budget_chart(budget(3.79811, None, 2.5))
    assert figure.get_label() == "people: epsilon 2.5 of 4 is left after 2 releases"
    words = said(figure)
    for text in ("budget opened", "4.00", "analyze_gauss 00000000  2026-03-01", "3.79 (−0.2)", "sub@3  2026-03-03"):
        assert text in words
    assert not any("sub@2" in word for word in words)  # not charged: abandoned, or paid by its stream


def test_what_is_left_is_never_rounded_up() -> None:
    assert "0.039 of 0.5 is left" in str(budget_chart(budget(0.03999, epsilon=0.5)).get_label())
    assert "epsilon 0 of 4" in str(budget_chart(budget(0.0)).get_label())


def test_the_earliest_of_many_releases_share_a_row() -> None:
    words = said(budget_chart(budget(*(4.0 - 0.1 * at for at in range(1, 31)))))
    assert "15 earlier releases" in words
    assert sum("2026-03" in word for word in words) == 15


def test_a_budget_says_when_nothing_was_released_and_when_it_is_void() -> None:
    assert budget_chart(budget()).get_label() == "people: epsilon 4 of 4 is left: nothing was released"
    void = budget_chart(budget(0.0, voided=True))
    assert void.get_label() == "people: the budget is void, and nothing is left"
    assert void.texts[0].get_color() == theme_of("light").against


@pytest.mark.parametrize("theme", THEMES)
def test_every_chart_stands_on_the_ground_of_its_theme(theme: str) -> None:
    look = theme_of(theme)
    for figure in (
        scree_chart(SEEN, theme=theme),
        loadings_chart(ROWS, component=1, theme=theme),
        budget_chart(budget(3.0), theme=theme),
    ):
        picture = render(figure).decode()
        assert f"fill: {look.ground}" in picture
        others = {color for name, other in THEMES.items() if name != theme for color in (other.text, other.ground)}
        assert not any(color in picture for color in others)
