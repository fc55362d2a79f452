"""The largest loadings of a component."""

import numpy as np
import pytest

from flows.reports.spectrum import Spectrum, top_loadings
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid

COMPONENTS = np.array([[0.48, 0.0, -0.64, 0.6], [0.0, 1.0, 0.0, 0.0]])


def test_loadings_come_by_size_and_by_name() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={"feature_names": ["a", "b", "c", "d"]})
    found = top_loadings(subspace, component=1, count=2)
    assert found == [{"feature": "c", "loading": -0.64}, {"feature": "d", "loading": 0.6}]


def test_columns_without_names_are_counted_from_one_and_zeros_left_out() -> None:
    subspace = PrivateSubspace(components=COMPONENTS, manifest={})
    assert top_loadings(subspace, component=2) == [{"feature": "column 2", "loading": 1.0}]
    assert len(top_loadings(subspace, component=1)) == 3


@pytest.mark.parametrize("component", [0, 3, -1])
def test_a_component_that_was_not_released_is_refused(component: int) -> None:
    with pytest.raises(Invalid, match=r"none of the release's, 1 to 2; name one"):
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
