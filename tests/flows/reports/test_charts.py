"""Charts, as bytes and as files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.reports.charts import check_chart_file, render, write_chart
from flows.reports.release_charts import scree_chart
from flows.reports.spectrum import Spectrum
from storage.errors import Invalid

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
