"""Processor time to refine and assess a released matrix of 150, 784 and 2,000 columns, with ten components."""

import math
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.conftest import Measurement
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.released_moment import Moment, decompose
from dpca_tasks.refinement.leading_pairs import Request
from dpca_tasks.refinement.refined_release import refine_release

COMPONENTS = 10
AT_MOST = {150: 0.115, 784: 0.19, 2_000: 0.99}
"""The limit on processor seconds of refining, by the number of features."""
AT_MOST_ALIKE = {150: 0.05, 784: 0.2, 2_000: 0.6}
"""The same limit if all features are alike, so that there is nothing to select."""
TOY = 40


@pytest.mark.parametrize("features", AT_MOST)
def bench_refinement(features: int, measure: Measurement, *, toy: bool) -> None:
    order = TOY if toy else features
    weak, strong = (_released(order, strongest=strongest) for strongest in (6.0, 60.0))
    alike = _released(order, strongest=6.0, weakest=3.0, unlike=False)
    cases: tuple[tuple[str, Subspace, Request, float | None], ...] = (
        ("assessed-alone", weak, "none", None),
        ("refined-and-assessed", weak, "auto", AT_MOST[features]),
        ("features-alike", alike, "auto", AT_MOST_ALIKE[features]),
        ("nothing-left-to-refine", strong, "auto", None),
    )
    for name, raw, method, bar in cases:
        start = time.process_time()
        found = refine_release(raw, n_components=COMPONENTS, method=method)
        measure(name, time.process_time() - start, at_most=bar)
        assert found.assessment.above_noise
        assert toy or (found.assessment.probes > 0) is (name == "refined-and-assessed")


def _released(order: int, *, strongest: float, weakest: float = 1.0, unlike: bool = True) -> Subspace:
    """Simulate a released matrix: twenty directions with strengths in a geometric series, plus noise of std 1.

    The features have different scales if ``unlike``, and equal scales otherwise. The strengths are in units of
    ``sqrt(order)``.
    """
    rng = np.random.default_rng(1)
    sizes = np.exp(float(unlike) * rng.standard_normal((order, 1)))
    directions = np.linalg.qr(sizes * rng.standard_normal((order, 2 * COMPONENTS)))[0]
    strengths = np.geomspace(strongest, weakest, 2 * COMPONENTS) * math.sqrt(order)
    square: NDArray[np.float64] = rng.standard_normal((order, order)) / math.sqrt(2.0)
    matrix = (directions * strengths) @ directions.T + square + square.T
    noise = {"law": "isometric", "std": 1.0, "step": 2.0**-20, "constant": None}
    return decompose(Moment(matrix=matrix, released=matrix, noise=noise), n_components=COMPONENTS)
