"""Charts, drawn to files."""

from pathlib import Path

import pytest

from flows.reports.charts import draw_spectrum
from flows.reports.spectrum import Spectrum
from storage.errors import Invalid

SEEN = Spectrum(eigenvalues=(160.0, 40.0, 10.0, 5.0, -1.0), n_components=3, noise_edge=12.0)


def drawn(spectrum: Spectrum, path: Path) -> str:
    draw_spectrum(spectrum, path, name="sub@1")
    return path.read_text(encoding="utf8")


def test_the_picture_has_the_band_and_tells_what_is_above_it(tmp_path: Path) -> None:
    picture = drawn(SEEN, tmp_path / "a.svg")
    for word in ("noise alone", "above the noise", "within the noise", "component", "sub@1: released eigenvalues"):
        assert f"<!-- {word}" in picture


def test_a_picture_without_an_edge_has_no_band(tmp_path: Path) -> None:
    picture = drawn(Spectrum(eigenvalues=(8.0, 4.0), n_components=1, noise_edge=None), tmp_path / "a.svg")
    assert "<!-- eigenvalue" in picture
    assert "<!-- noise alone" not in picture
    assert "above the noise" not in picture


@pytest.mark.parametrize("values", [(-1.0, -2.0), (0.0,)])
@pytest.mark.parametrize("edge", [None, 10.0])
def test_a_spectrum_without_anything_to_draw_is_an_empty_picture(
    tmp_path: Path, values: tuple[float, ...], edge: float | None
) -> None:
    path = tmp_path / "a.png"
    draw_spectrum(Spectrum(eigenvalues=values, n_components=1, noise_edge=edge), path, name="x")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.jpg", "a", "missing/a.png"])
def test_a_picture_of_another_format_or_place_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"\.png or \.svg file in an existing folder"):
        draw_spectrum(SEEN, tmp_path / name, name="x")
