"""Pure noise of an exponential length and a uniform direction. Keys are fixed: over all, a test fails once in 1,000."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpca_tasks.accounting.events import approximate
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.distributions import LARGEST_SCALE
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.noise.radial_laplace import CubeRadial, SymmetricRadial
from dpca_tasks.noise.symmetric_weights import cube_weights, symmetric_weights

LAWS = (SymmetricRadial(noise_multiplier=0.5), CubeRadial(noise_multiplier=0.5))
WEIGHTS = {"symmetric": symmetric_weights, "cube": cube_weights}
FALSE_ALARM = 1e-3
SCALE = 2.0**18
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)


def isometric(law, order, count):
    """Independent draws in the coordinates of an orthonormal basis, in units of the scale."""
    size = Layout(kind=law.layout, order=order).size
    weights = WEIGHTS[law.layout](order, start=0, stop=size)
    keys = (subkey(bytes(32), label="test", info=f"{law.name} {index}".encode()) for index in range(count))
    return np.array([law.draw(key, order, scale_in_steps=SCALE) for key in keys]) / weights / SCALE


@every_law
@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_length_is_of_the_stated_density_and_the_direction_uniform(law, order):
    """By KS: the length is Gamma(p), and the cosine of the angle to any direction that of a uniform direction."""
    noise = isometric(law, order, 1500)
    p = noise.shape[1]
    lengths = np.linalg.norm(noise, axis=1)
    assert stats.kstest(lengths, stats.gamma(p).cdf).pvalue > FALSE_ALARM / 24
    if p > 1:
        for direction in (np.eye(p)[0], np.eye(p)[1], np.ones(p) / math.sqrt(p)):
            squared = (noise @ direction / lengths) ** 2
            assert stats.kstest(squared, stats.beta(0.5, (p - 1) / 2).cdf).pvalue > FALSE_ALARM / 24
    assert abs(np.mean(noise[:, 0] > 0) - 0.5) < stats.norm.isf(FALSE_ALARM / 48) / (2 * math.sqrt(len(noise)))


@pytest.mark.parametrize("p", [1, 3, 10])
def test_a_normal_of_random_length_has_the_exponential_density(p):
    """So a move by Delta changes it by at most ``exp(Delta / s)``: by quadrature, at lengths from 0.1 to 30."""
    radius = stats.chi(p + 1)

    def log_density(length):
        def of(r):
            return radius.pdf(r) * r**-p * math.exp(-((length / r) ** 2) / 2)

        return math.log(integrate.quad(of, 0, 60, limit=400, epsabs=0, points=(0.5, 2, 5, 10))[0])

    start = log_density(0.1)
    for length in (1.0, 5.0, 30.0):
        assert log_density(length) - start == pytest.approx(0.1 - length, rel=1e-6)


@every_law
def test_a_coordinate_has_the_stated_std(law):
    noise = isometric(law, 3, 1500)
    assert noise.std() == pytest.approx(law.spread(3), rel=0.06)


@every_law
def test_the_event_is_pure_with_its_epsilon_rounded_up(law):
    assert law.event == approximate(2.0, 0.0)
    third = type(law)(noise_multiplier=3.0)
    assert third.event["epsilon"] * 3 >= 1
    assert third.event["epsilon"] == pytest.approx(1 / 3, rel=1e-15)


@every_law
def test_a_scale_is_refused_before_anything_depends_on_the_key(law):
    edge = LARGEST_SCALE / (law.spread(5) + 16)
    law.draw(subkey(bytes(32), label="test", info=b""), 5, scale_in_steps=edge)
    with pytest.raises(InvalidInput, match="coarser grid"):
        law.draw(subkey(bytes(32), label="test", info=b""), 5, scale_in_steps=edge * 1.001)
