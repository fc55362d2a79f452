"""Charts of released numbers: readable colors, correct numbers, and a description in words.

Colors must be readable on their background, and distinguishable for all types of color vision. The largest loadings of
a component must be selected correctly.

Charts of derived artifacts have the finding in the title, greyed numbers, and labels that do not cover each other.
`registry show` prints a readable page, with the verdict first, then each fact with its meaning.
"""

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpca.artifacts.derived import Correlations, DerivedModel
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Invalid
from flows.releases.stages import _MEASURES
from flows.reports.derived_charts import _spread, derived_chart
from flows.reports.release_charts import (
    THEMES,
    budget_chart,
    check_chart_file,
    loadings_chart,
    render,
    scree_chart,
    theme_of,
    write_chart,
)
from flows.reports.release_page import LABELS, formatted, label, meaning, quality_of, release_page, rounded_down
from flows.reports.spectrum import Spectrum, top_loadings
from tests.flows.conftest import Command

LEAST_CONTRAST = 4.5  # minimum contrast of WCAG 2 for text of any size
SEPARATE = 20.0  # a color difference (CIE 1976) that is seen at a glance; 2.3 is just noticeable

# simulated color vision, by Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
SIGHT = {
    "full": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color: str) -> NDArray[np.float64]:
    values = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255.0
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(color: str) -> float:
    return float(linear(color) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    scaled = xyz / [0.9505, 1.0, 1.089]
    x, y, z = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_contrast_and_color_difference_follow_their_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert lab(linear("#ffffff")) == pytest.approx([100.0, 0.0, 0.0], abs=0.05)


@pytest.mark.parametrize("name", THEMES)
def test_all_text_has_contrast_to_its_background(name: str) -> None:
    theme = theme_of(name)
    for color in (theme.text, theme.muted, theme.signal, theme.against, *theme.series):
        assert contrast(color, theme.ground) >= LEAST_CONTRAST, color
    for color in (theme.text, theme.muted, theme.signal, theme.against):
        assert contrast(color, theme.band) >= LEAST_CONTRAST, color


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("name", THEMES)
def test_chart_colors_are_distinct_for_every_type_of_color_vision(name: str, sight: str) -> None:
    theme = theme_of(name)
    seen = [
        lab(np.clip(np.array(SIGHT[sight]) @ linear(color), 0.0, 1.0))
        for color in (theme.signal, theme.against, theme.muted)
    ]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > SEPARATE


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(Invalid, match="'sepia' is unknown; a chart is drawn light or dark"):
        theme_of("sepia")


SEEN = Spectrum(eigenvalues=(160.0, 40.0, 10.0, 5.0, -1.0), n_components=3, noise_edge=12.0)


@pytest.mark.parametrize("form", ["svg", "png"])
def test_equal_charts_are_equal_bytes_also_from_several_threads(form: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        drawn = set(pool.map(lambda _: render(scree_chart(SEEN), format=form), range(4)))
    assert len(drawn) == 1
    other = Spectrum(eigenvalues=(160.0, 41.0), n_components=1, noise_edge=12.0)
    assert render(scree_chart(other), format=form) not in drawn


def test_the_svg_has_its_text_as_text_its_finding_as_title_and_no_date() -> None:
    picture = render(scree_chart(SEEN, name="sub@1")).decode()
    assert "<title>2 of 5 eigenvalues are above the noise</title>" in picture
    assert ">sub@1: released eigenvalues, largest first</text>" in picture
    assert "<dc:date>" not in picture


def test_a_png_has_twice_the_resolution_of_a_600_pixel_page() -> None:
    picture = render(scree_chart(SEEN), format="png")
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 1200


def test_a_format_without_a_writer_is_refused() -> None:
    with pytest.raises(Invalid, match="'jpg' is unknown; a chart is written as svg or png"):
        render(scree_chart(SEEN), format="jpg")


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_a_written_picture_equals_the_rendered_one(tmp_path: Path, name: str) -> None:
    write_chart(scree_chart(SEEN), tmp_path / name)
    assert (tmp_path / name).read_bytes() == render(scree_chart(SEEN), format=name[-3:])


@pytest.mark.parametrize("name", ["a.jpg", "a", "missing/a.png"])
def test_a_picture_of_another_format_or_place_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"\.png or \.svg file in an existing folder"):
        check_chart_file(tmp_path / name)


VERDICT = "2 of 3 components stand above the noise; the subspace holds at least .93 of the variance that 3 could hold."
RELEASE_CHARTS_SEEN = Spectrum(
    eigenvalues=(160.0, 40.0, 10.0, 5.0, -1.0), n_components=3, noise_edge=12.0, verdict=VERDICT
)
ROWS = [{"feature": "hours", "loading": 0.8}, {"feature": "age", "loading": -0.5}, {"feature": "pay", "loading": 0.1}]


def message(figure: Any) -> list[str]:
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


def test_a_scree_plot_has_the_verdict_as_title_and_labels() -> None:
    figure = scree_chart(RELEASE_CHARTS_SEEN, name="sub@1")
    assert figure.get_label() == "2 of 3 components stand above the noise"
    words = message(figure)
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


def test_a_scree_plot_without_a_known_noise_edge_states_this_and_has_no_band() -> None:
    words = message(scree_chart(Spectrum(eigenvalues=(8.0, 4.0), n_components=1, noise_edge=None)))
    assert {"1 component", "1 more"} < set(words)
    assert not any("noise alone stays" in word for word in words)
    assert "2 released eigenvalues, without a noise floor" in words


@pytest.mark.parametrize("values", [(-1.0, -2.0), (0.0,)])
@pytest.mark.parametrize("edge", [None, 10.0])
def test_a_spectrum_without_anything_to_draw_is_an_empty_picture(values: tuple[float, ...], edge: float | None) -> None:
    assert "component" not in " ".join(
        message(scree_chart(Spectrum(eigenvalues=values, n_components=1, noise_edge=edge)))
    )


def test_a_release_of_noise_is_named_in_the_colour_of_a_warning() -> None:
    lost = Spectrum(eigenvalues=(8.0, 7.0), n_components=2, noise_edge=12.0)
    assert theme_of("light").against == scree_chart(lost).texts[0].get_color()
    assert theme_of("light").text == scree_chart(RELEASE_CHARTS_SEEN).texts[0].get_color()


def test_loadings_have_names_and_numbers_and_the_contrast_of_the_component() -> None:
    words = message(loadings_chart(ROWS, component=2, name="sub@1"))
    assert words[-2:] == [
        "Component 2: hours against age",
        "the 3 largest loadings are 90 % of the component of sub@1",
    ]
    assert {"hours", "age", "pay", "+0.80", "−0.50", "+0.10"} < set(words)


def test_loadings_of_one_sign_are_described_as_moving_together() -> None:
    assert loadings_chart(ROWS[::2], component=1).get_label() == "Component 1: hours and pay"
    assert loadings_chart([], component=1).get_label() == "Component 1: no large loading"


def test_a_burn_down_names_every_release_and_the_remaining_budget() -> None:
    figure = budget_chart(budget(3.79811, None, 2.5))
    assert figure.get_label() == "people: epsilon 2.5 of 4 is left after 2 releases"
    words = message(figure)
    for text in ("budget opened", "4.00", "analyze_gauss 00000000  2026-03-01", "3.79 (−0.2)", "sub@3  2026-03-03"):
        assert text in words
    # version 2 is not listed, because its release was not charged: abandoned, or paid by its stream
    assert not any("sub@2" in word for word in words)


def test_the_remaining_budget_is_never_rounded_up() -> None:
    assert "0.039 of 0.5 is left" in str(budget_chart(budget(0.03999, epsilon=0.5)).get_label())
    assert "epsilon 0 of 4" in str(budget_chart(budget(0.0)).get_label())


def test_the_earliest_of_many_releases_share_a_row() -> None:
    words = message(budget_chart(budget(*(4.0 - 0.1 * at for at in range(1, 31)))))
    assert "15 earlier releases" in words
    assert sum("2026-03" in word for word in words) == 15


def test_the_chart_of_an_unused_or_void_budget_states_this() -> None:
    assert budget_chart(budget()).get_label() == "people: epsilon 4 of 4 is left: no release yet"
    void = budget_chart(budget(0.0, voided=True))
    assert void.get_label() == "people: the budget is void, with nothing left"
    assert void.texts[0].get_color() == theme_of("light").against


@pytest.mark.parametrize("theme", THEMES)
def test_every_chart_has_the_background_of_its_theme(theme: str) -> None:
    inspect = theme_of(theme)
    for figure in (
        scree_chart(RELEASE_CHARTS_SEEN, theme=theme),
        loadings_chart(ROWS, component=1, theme=theme),
        budget_chart(budget(3.0), theme=theme),
    ):
        picture = render(figure).decode()
        assert f"fill: {inspect.ground}" in picture
        others = {color for name, other in THEMES.items() if name != theme for color in (other.text, other.ground)}
        assert not any(color in picture for color in others)


COMPONENTS = np.array([[0.48, 0.0, -0.64, 0.6], [0.0, 1.0, 0.0, 0.0]])


def test_loadings_are_sorted_by_size_and_name() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={"feature_names": ["a", "b", "c", "d"]})
    found = top_loadings(subspace, component=1, count=2)
    assert found == [{"feature": "c", "loading": -0.64}, {"feature": "d", "loading": 0.6}]


def test_columns_without_names_are_counted_from_one_and_zeros_left_out() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={})
    assert top_loadings(subspace, component=2) == [{"feature": "column 2", "loading": 1.0}]
    assert len(top_loadings(subspace, component=1)) == 3


@pytest.mark.parametrize("component", [0, 3, -1])
def test_a_component_that_was_not_released_is_refused(component: int) -> None:
    with pytest.raises(Invalid, match=r"does not exist in this release; choose 1 to 2"):
        top_loadings(PrivateSubspace(components=COMPONENTS, manifest={}), component=component)


def made(*values: float, k: int = 1, edge: float | None = 10.0) -> Spectrum:
    return Spectrum(eigenvalues=values, n_components=k, noise_edge=edge)


def bars(spectrum: Spectrum, width: int = 40) -> list[str]:
    return spectrum.text(width=width).splitlines()[1:-1]


def test_a_bar_is_shaded_as_far_as_noise_alone_reaches() -> None:
    lines = bars(made(160.0, 40.0, 10.0, 5.0, 2.5, 0.0, -3.0))
    assert [line.count("░") for line in lines] == [13, 13, 13, 7, 0, 0, 0]
    assert [line.count("█") for line in lines] == [27, 14, 0, 0, 0, 0, 0]
    assert [line.split()[-1] for line in lines] == ["160.0", "40.0", "10.0", "5.0", "2.5", "0.0", "-3.0"]


def test_components_are_marked_and_what_is_above_the_noise_is_counted() -> None:
    spectrum = made(160.0, 40.0, 10.0, 5.0, k=3)
    assert [line[5] for line in bars(spectrum)] == ["●", "●", "●", " "]
    assert spectrum.above_noise == 2
    assert spectrum.text().splitlines()[-1].startswith("2 of 4 are above the noise; ● marks the 3 ")


@pytest.mark.parametrize(("counted", "shown"), [(2, 2), (9, 3)])
def test_a_release_in_rounds_states_its_count_of_at_most_the_eigenvalues_that_it_kept(counted: int, shown: int) -> None:
    spectrum = Spectrum(eigenvalues=(9.0, 8.0, 7.0), n_components=1, noise_edge=100.0, counted=counted)
    assert spectrum.above_noise == shown
    assert f"{shown} of 3 are above the noise" in spectrum.text()


def test_eigenvalues_far_down_are_counted_and_not_listed() -> None:
    lines = bars(made(*np.linspace(99.0, 1.0, 64).tolist(), k=2))
    assert len(lines) == 13
    assert lines[-1].split() == ["…", "and", "52", "more"]


def test_without_a_noise_edge_no_eigenvalue_is_called_noise() -> None:
    spectrum = made(8.0, 4.0, 0.0, edge=None)
    assert spectrum.above_noise is None
    assert "░" not in spectrum.text()
    assert "above the noise" not in spectrum.text()
    assert spectrum.facts() == {"values": [8.0, 4.0, 0.0], "noise_edge": None, "above_noise": None}


@pytest.mark.parametrize("values", [(-1.0,), (0.0, 0.0), (1e-300,), (1e300, 1e-300)])
@pytest.mark.parametrize("edge", [None, 0.0, 10.0])
def test_every_spectrum_can_be_drawn(values: tuple[float, ...], edge: float | None) -> None:
    text = made(*values, edge=edge).text(width=20)
    assert "nan" not in text
    assert all(line.count("░") + line.count("█") <= 20 for line in text.splitlines()[1:-1])


def test_a_release_of_directions_alone_has_no_spectrum() -> None:
    with pytest.raises(Invalid, match="directions without eigenvalues"):
        Spectrum.of(PrivateSubspace(components=np.eye(2, 3), manifest={}), noise_edge=None)


NAMES = ["age", "job=a", "job=b"]


def components(*, above: int) -> DerivedModel:
    """Return two components of three features."""
    facts = {"model": "pca", "outputs": ["component 1", "component 2"]}
    return DerivedModel(
        coefficients=np.eye(2, 3),
        intercepts=np.zeros(2),
        loadings=np.array([[1.0, 0.5, 0.0], [0.1, 0.1, 0.1]]),
        manifest={"feature_names": NAMES, "derived": facts, "outcome": {"above_noise": above}},
    )


@pytest.mark.parametrize(("above", "axis"), [(2, "loading on component 2"), (1, ""), (0, "")])
def test_a_biplot_needs_two_components_above_the_noise(above: int, axis: str) -> None:
    figure = derived_chart(components(above=above), name="map@1")
    assert figure.get_label() == f"{above} of 2 components are above the noise"
    assert figure.axes[0].get_ylabel() == axis


def test_coefficients_whose_interval_holds_zero_are_grey() -> None:
    model = DerivedModel(
        coefficients=np.array([[1.0, 0.1, -1.0]]),
        intercepts=np.zeros(1),
        errors=np.full((1, 3), 0.1),
        manifest={"feature_names": NAMES, "derived": {"model": "ridge", "target": "y", "outputs": ["y"]}},
    )
    figure = derived_chart(model)
    assert figure.get_label() == "y: 2 of 3 coefficients differ from 0"
    colors = [line.get_color() for line in figure.axes[0].lines[:6:2]]
    assert len(set(colors)) == 3  # positive, negative and grey


def test_correlations_within_the_noise_are_grey() -> None:
    values = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, -0.5], [0.1, -0.5, 1.0]])
    facts = {"feature_names": NAMES, "derived": {"model": "correlation"}}
    errors = np.full((3, 3), 0.1)
    figure = derived_chart(
        Correlations(values=values, errors=errors, partial=values, partial_errors=errors, manifest=facts)
    )
    assert figure.get_label() == "2 of 3 correlations differ from 0"
    cells = np.ma.filled(np.ma.asarray(figure.axes[0].images[0].get_array(), float), np.nan)
    assert np.array_equal(np.isnan(cells), np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], bool))


def test_labels_of_arrows_keep_a_distance() -> None:
    heights = np.array([0.3, 0.0, 0.01, 0.0, -0.5])
    placed = _spread(heights, gap=0.1)
    assert np.diff(np.sort(placed)).min() >= 0.1 - 1e-12
    assert placed.mean() == pytest.approx(heights.mean())
    assert np.array_equal(np.argsort(placed, kind="stable"), np.argsort(heights, kind="stable"))
    assert len(_spread(np.zeros(0), gap=0.1)) == 0


def test_every_fact_of_quality_has_a_label_and_a_meaning_which_the_documents_state() -> None:
    page = Path("docs/reference/artifact.md").read_text(encoding="utf-8")
    for name in [name for name in _MEASURES if name != "verdict"]:
        assert name in LABELS, name
        assert meaning(name), name
    for name, (text, means) in LABELS.items():
        assert f"| `{name}` | {text} | {means} |" in page


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (0.186191, "share", "0.186"),
        (0.1869, "share_low", "0.186"),
        (0.99999, "cv_low", "0.999"),
        (41.822, "noise_std", "41.8"),
        (323862.6, "captured", "323,863"),
        (True, "failed", "yes"),
        (None, "users", "-"),
        (49, "above_noise", "49"),
    ],
)
def test_a_fact_is_stated_in_three_digits_and_a_lower_bound_is_rounded_down(
    value: object, name: str, text: str
) -> None:
    assert formatted(value, name=name) == text


def test_rounding_down_never_rounds_up() -> None:
    for value in (0.1, 0.2999, 0.7148, 1.0, 123456.0):
        assert rounded_down(value, digits=3) <= value


def test_a_release_is_shown_as_a_page_and_as_json(released: Path, dpca: Command) -> None:
    facts = json.loads(dpca("registry", "show", "sub", "--json").out)
    shown = dpca("registry", "show", "sub").out
    assert shown == release_page(facts) + "\n"
    verdict = facts["verdict"]
    lines = shown.splitlines()
    assert lines[0].startswith("sub@1")
    assert verdict[1:30] in " ".join(lines[:6])
    for text in ("Guarantee\n", facts["statement"], "Quality\n", "Terms\n", "Origin\n", facts["release"]):
        assert text in shown
    for name in quality_of(facts["manifest"]["outcome"]):
        assert label(name) in shown
    assert max(len(line) for line in lines if "sha256" not in line) <= 80


def test_a_result_without_privacy_is_marked() -> None:
    assert "NOT PRIVATE" in release_page({"artifact": "map@1", "private": False, "manifest": {}})
