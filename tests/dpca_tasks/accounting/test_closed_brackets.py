"""What one Wishart matrix costs is what the densities of its one decisive number say."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import wishart_delta, wishart_epsilon


@pytest.mark.parametrize(
    ("degrees", "scale", "epsilon"), [(4, 1.0, 0.3), (7, 3.0, 0.1), (40, 1.0, 0.05), (2, 5.0, 1.0)]
)
def test_delta_is_the_larger_of_the_two_integrals_that_define_it(degrees: float, scale: float, epsilon: float) -> None:
    law = stats.chi2(degrees, scale=scale)

    def lost(first: float, second: float) -> float:
        def above(t: float) -> float:
            return max(float(law.pdf(t - first) - math.exp(epsilon) * law.pdf(t - second)), 0.0)

        end = float(law.isf(1e-14)) + 1
        edges = [0.0, 1.0, *np.geomspace(1.001, end, 12)]
        return float(sum(integrate.quad(above, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(edges)))

    expected = max(lost(0.0, 1.0), lost(1.0, 0.0))
    assert wishart_delta(degrees, scale=scale, epsilon=epsilon) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0328), (1.0, 0.283)])
def test_the_published_matrix_has_a_delta_that_no_epsilon_covers(epsilon: float, delta: float) -> None:
    found = wishart_delta(2, scale=3 / (2 * epsilon), epsilon=epsilon)
    assert found == pytest.approx(delta, rel=2e-3)
    assert wishart_delta(2, scale=3 / (2 * epsilon), epsilon=100.0) == found
    assert wishart_epsilon(2, scale=3 / (2 * epsilon), delta=delta / 2) == math.inf


def test_many_degrees_of_freedom_are_as_noisy_as_a_gaussian() -> None:
    """At p = 1e4 and d = 123 the std off the diagonal is 12.59 where Analyze Gauss has 12.31."""
    scale = optimize.brentq(lambda c: wishart_delta(1e4, scale=c, epsilon=0.1) - 1e-3, 0.01, 1.0)
    assert scale * math.sqrt(1e4 + 122) == pytest.approx(12.59, abs=0.005)
    assert gaussian_noise_multiplier(epsilon=0.1, delta=1e-3) / math.sqrt(2) == pytest.approx(12.31, abs=0.005)


def test_the_epsilon_found_holds_and_little_less_does_not() -> None:
    found = wishart_epsilon(50, scale=1.0, delta=1e-3)
    assert wishart_delta(50, scale=1.0, epsilon=found) <= 1e-3 < wishart_delta(50, scale=1.0, epsilon=found * 0.99999)
