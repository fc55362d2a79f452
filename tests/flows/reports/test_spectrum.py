"""The released eigenvalues beside the band of the noise, as text."""

import numpy as np
import pytest

from flows.reports.spectrum import Spectrum
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid


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
    assert spectrum.text().splitlines()[-1].startswith("2 of 4 stand above the noise; ● marks the 3 ")


def test_eigenvalues_far_down_are_counted_and_not_listed() -> None:
    lines = bars(made(*np.linspace(99.0, 1.0, 64).tolist(), k=2))
    assert len(lines) == 13
    assert lines[-1].split() == ["…", "and", "52", "more"]


def test_without_an_edge_nothing_is_called_noise() -> None:
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
