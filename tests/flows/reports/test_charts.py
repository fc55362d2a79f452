"""The colours of charts: readable on their ground, and apart for every eye."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flows.reports.charts import THEMES, check_chart_file, render, theme_of, write_chart
from flows.reports.release_charts import scree_chart
from flows.reports.spectrum import Spectrum
from storage.errors import Invalid

LEAST_CONTRAST = 4.5  # WCAG 2, text of any size
APART = 20.0  # a difference of colours (CIE 1976) that is seen at a glance; 2.3 is just noticed

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
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


def test_contrast_and_difference_are_those_of_their_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert lab(linear("#ffffff")) == pytest.approx([100.0, 0.0, 0.0], abs=0.05)


@pytest.mark.parametrize("name", THEMES)
def test_all_that_is_read_has_contrast_to_what_it_stands_on(name: str) -> None:
    theme = theme_of(name)
    for color in (theme.text, theme.muted, theme.signal, theme.against, *theme.series):
        assert contrast(color, theme.ground) >= LEAST_CONTRAST, color
    for color in (theme.text, theme.muted, theme.signal, theme.against):
        assert contrast(color, theme.band) >= LEAST_CONTRAST, color


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("name", THEMES)
def test_what_a_chart_tells_apart_by_colour_is_apart_for_every_eye(name: str, sight: str) -> None:
    theme = theme_of(name)
    seen = [
        lab(np.clip(np.array(SIGHT[sight]) @ linear(color), 0.0, 1.0))
        for color in (theme.signal, theme.against, theme.muted)
    ]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > APART


def test_a_theme_that_nobody_drew_is_refused() -> None:
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
    assert "<title>2 of 5 eigenvalues stand above the noise</title>" in picture
    assert ">sub@1: released eigenvalues, largest first</text>" in picture
    assert "<dc:date>" not in picture


def test_a_png_is_twice_as_fine_as_a_page_of_600_pixels_shows() -> None:
    picture = render(scree_chart(SEEN), format="png")
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 1200


def test_a_format_without_a_writer_is_refused() -> None:
    with pytest.raises(Invalid, match="'jpg' is unknown; a chart is written as svg or png"):
        render(scree_chart(SEEN), format="jpg")


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_a_file_holds_what_is_rendered(tmp_path: Path, name: str) -> None:
    write_chart(scree_chart(SEEN), tmp_path / name)
    assert (tmp_path / name).read_bytes() == render(scree_chart(SEEN), format=name[-3:])


@pytest.mark.parametrize("name", ["a.jpg", "a", "missing/a.png"])
def test_a_picture_of_another_format_or_place_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"\.png or \.svg file in an existing folder"):
        check_chart_file(tmp_path / name)
