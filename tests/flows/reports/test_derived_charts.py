"""Charts of derived artifacts: the finding in the title, greyed numbers, and labels that do not cover each other."""

import numpy as np
import pytest

from dpca.artifacts.derived import Correlations, DerivedModel
from flows.reports.derived_charts import _spread, derived_chart

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
