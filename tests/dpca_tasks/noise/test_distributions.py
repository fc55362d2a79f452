"""Noise distributions on vectors, symmetric matrices and tensors: draws, covariance, events and norms.

Each distribution must give integers determined by key and index, the right covariance in every direction, and the right
event and norm. Noise on stacks of symmetric matrices must have the right moments, and any range of it can be drawn
separately. A packed coordinate's weight is one over the root of the number of entries that it represents. Pure noise
has an exponential length and a uniform direction. Keys are fixed: over all keys, a test fails once in 1,000.
"""

import itertools
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats

from dpca_tasks.accounting.events import approximate, gaussian, laplace
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.layouts import Layout, unpack_cube, unpack_stack, unpack_symmetric
from dpca_tasks.noise import distributions
from dpca_tasks.noise.distributions import (
    LARGEST_SCALE,
    PURE_TAIL,
    Cube,
    Gaussian,
    JointGaussian,
    Laplace,
    NoiseDistribution,
    Symmetric,
    SymmetricLaplace,
    SymmetricStack,
    UpperTriangle,
    add_noise,
    check_tail,
    cube_weights,
    symmetric_weights,
)
from dpca_tasks.noise.keystream import SecretKey, laplaces, normals, subkey
from dpca_tasks.noise.pure_matrices import CubeRadial, SymmetricRadial, WishartDifference

LAWS: list[NoiseDistribution] = [
    Gaussian(noise_multiplier=4.0),
    Symmetric(noise_multiplier=4.0),
    Cube(noise_multiplier=4.0),
    Laplace(noise_multiplier=4.0),
    WishartDifference(epsilon=0.5),
    UpperTriangle(noise_multiplier=4.0),
    SymmetricLaplace(noise_multiplier=4.0),
    SymmetricRadial(noise_multiplier=4.0),
    CubeRadial(noise_multiplier=4.0),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)


def key(index: int = 0) -> SecretKey:
    return subkey(bytes(32), label="test", info=index.to_bytes(4, "little"))


def draws(law: NoiseDistribution, order: int, count: int) -> NDArray[np.float64]:
    """Return independent draws of a noise distribution, one per key, in units of the scale."""
    scale = 2.0**20
    return np.array([law.draw(key(i), order, scale_in_steps=scale) for i in range(count)]) / scale


def full_tensor(packed: NDArray[np.float64], law: NoiseDistribution, order: int) -> NDArray[np.float64]:
    """Return all entries of a symmetric tensor as a flat array, from its packed coordinates."""
    indices = {"vector": 1, "symmetric": 2, "cube": 3}[law.layout]
    full = np.empty((order,) * indices)
    corners = itertools.combinations_with_replacement(range(order), indices)
    for value, corner in zip(packed, corners, strict=True):
        for place in itertools.permutations(corner):
            full[place] = value
    return full.reshape(-1)


@every_law
@given(order=st.integers(1, 60), data=st.data())
def test_any_range_of_coordinates_can_be_drawn_separately(
    law: NoiseDistribution, order: int, data: st.DataObject
) -> None:
    whole = law.draw(key(), order, scale_in_steps=2.0**20)
    assert whole.dtype == np.int64
    assert whole.size == Layout(kind=law.layout, order=order).size
    start, stop = sorted(data.draw(st.integers(0, whole.size)) for _ in range(2))
    part = law.draw(key(), order, scale_in_steps=2.0**20, start=start, stop=stop)
    np.testing.assert_array_equal(part, whole[start:stop])


@every_law
@pytest.mark.parametrize("processors", [1, 3])
def test_noise_is_added_by_any_number_of_threads(
    law: NoiseDistribution, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "processors", lambda: processors)
    monkeypatch.setattr(distributions, "_WORTH_THREADS", 100)
    order = {"vector": 900, "symmetric": 50, "cube": 20}[law.layout]
    sums = np.arange(Layout(kind=law.layout, order=order).size)
    answer = sums.copy()
    add_noise(answer, law, key(), order, scale_in_steps=2.0**20)
    np.testing.assert_array_equal(answer - sums, law.draw(key(), order, scale_in_steps=2.0**20))


def test_a_range_longer_than_one_piece_is_drawn_as_its_parts() -> None:
    law = Symmetric(noise_multiplier=1.0)
    whole = law.draw(key(), 500, scale_in_steps=2.0**20)
    parts = [
        law.draw(key(), 500, scale_in_steps=2.0**20, start=start, stop=min(start + 999, whole.size))
        for start in range(0, whole.size, 999)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(("law", "variates"), [(LAWS[0], normals), (LAWS[3], laplaces)])
def test_noise_is_the_scaled_variates_rounded(
    law: NoiseDistribution, variates: Callable[..., NDArray[np.float64]]
) -> None:
    noise = law.draw(key(), 1000, scale_in_steps=1000.0)
    exact = variates(key(), start=0, stop=1000) * 1000.0
    np.testing.assert_array_equal(noise, np.rint(exact))
    assert np.abs(noise - exact).max() <= 0.5


@every_law
def test_keys_scales_and_only_they_change_the_noise(law: NoiseDistribution) -> None:
    noise = law.draw(key(), 20, scale_in_steps=2.0**20)
    np.testing.assert_array_equal(law.draw(key(), 20, scale_in_steps=2.0**20), noise)
    assert np.mean(law.draw(key(1), 20, scale_in_steps=2.0**20) == noise) < 0.01
    np.testing.assert_allclose(law.draw(key(), 20, scale_in_steps=2.0**21), 2 * noise, atol=1.5, rtol=0)


@pytest.mark.parametrize(("law", "variance"), [(LAWS[0], 1.0), (LAWS[1], 1.0), (LAWS[2], 1.0), (LAWS[3], 2.0)])
def test_noise_has_the_same_variance_in_every_direction(law: NoiseDistribution, variance: float) -> None:
    """Project noise onto random unit tensors: the variance must be the same for all of them.

    Keys are fixed; a correct distribution is rejected with probability 1e-4.
    """
    order, count = 3, 4000
    directions = np.random.default_rng(1)
    noise = np.array([full_tensor(sample, law, order) for sample in draws(law, order, count)])
    for _ in range(4):
        packed = directions.normal(size=Layout(kind=law.layout, order=order).size)
        direction = full_tensor(packed, law, order)
        projections = noise @ (direction / np.linalg.norm(direction))
        assert abs(projections.mean()) < 4.5 * math.sqrt(variance / count)
        spread = math.sqrt((float(stats.kurtosis(projections)) + 2) / count)
        assert projections.var() == pytest.approx(variance, rel=4.5 * spread)


def test_symmetric_noise_is_unitarily_invariant() -> None:
    """Rotate symmetric noise matrices: each coordinate must keep its distribution.

    A Kolmogorov-Smirnov test at fixed keys has a false alarm once in 1e4.
    """
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3))).Q
    rotated = np.array([rotation @ unpack_symmetric(sample, 3) @ rotation.T for sample in draws(LAWS[1], 3, 4000)])
    for i in range(3):
        for j in range(i, 3):
            scale = 1.0 if i == j else math.sqrt(0.5)
            assert stats.kstest(rotated[:, i, j], stats.norm(scale=scale).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    "law", [Cube(noise_multiplier=1.0), CubeRadial(noise_multiplier=1.0)], ids=["normal", "radial"]
)
def test_a_cube_of_noise_contracted_with_orthonormal_directions_is_a_smaller_cube_of_noise(
    law: NoiseDistribution,
) -> None:
    """Contract cubes of noise with orthonormal directions: the result must be distributed as a smaller cube.

    Each coordinate is tested for normality (Kolmogorov-Smirnov) and variance. Keys are fixed; a correct distribution
    fails once in 1e4.
    """
    order, count = 4, 3000
    columns = np.linalg.qr(np.random.default_rng(5).normal(size=(order, 2))).Q
    whole = [unpack_cube(sample, order) for sample in draws(law, order, count)]
    seen = np.array([np.einsum("abc,ai,bj,ck->ijk", cube, columns, columns, columns) for cube in whole])
    for place, weight in (((0, 0, 0), 1.0), ((0, 0, 1), 1 / 3), ((0, 1, 1), 1 / 3), ((1, 1, 1), 1.0)):
        part = seen[:, *place] / math.sqrt(weight)
        if isinstance(law, Cube):
            assert stats.kstest(part, stats.norm.cdf).pvalue > 1e-4 / 4
        else:
            spread = math.sqrt((float(stats.kurtosis(part)) + 2) / count)
            assert part.var() == pytest.approx(CubeRadial.spread(order) ** 2, rel=4.5 * spread)


def test_wishart_difference_is_the_difference_of_two_products() -> None:
    order, c = 7, 2.0**20
    rows = normals(key(), start=0, stop=2 * (order + 1) * order).reshape(2, order + 1, order)
    expected = c * (rows[0].T @ rows[0] - rows[1].T @ rows[1])
    noise = LAWS[4].draw(key(), order, scale_in_steps=c)
    np.testing.assert_allclose(noise, expected[np.triu_indices(order)], rtol=0, atol=0.51)


def test_wishart_difference_has_the_stated_spread() -> None:
    """Compare stds of a difference of two Wishart matrices with the stated ones, within six standard errors.

    Keys are fixed.
    """
    order, count = 4, 4000
    noise = draws(LAWS[4], order, count)
    diagonal = np.isin(np.arange(noise.shape[1]), [0, 4, 7, 9])
    assert noise[:, ~diagonal].std() == pytest.approx(math.sqrt(2 * (order + 1)), rel=0.05)
    assert noise[:, diagonal].std() == pytest.approx(2 * math.sqrt(order + 1), rel=0.05)
    assert np.abs(noise.mean(axis=0)).max() < 6 * 2 * math.sqrt((order + 1) / count)


def test_wishart_difference_of_one_column_is_pure_dp() -> None:
    """At d = 1, a Wishart difference is c times a difference of two chi-squares with 2 degrees of freedom.

    So the difference is Laplace of scale 2c. So a shift by 1 changes the density, computed by quadrature, by a factor
    of at most exp(1 / 2c). The draws follow this distribution by a Kolmogorov-Smirnov test.
    """
    c = 1.5
    part = stats.chi2(2, scale=c)

    def density(distance: float) -> float:
        low = max(0.0, distance)
        return float(integrate.quad(lambda w: part.pdf(w) * part.pdf(w - distance), low, low + 120)[0])

    for distance in np.linspace(-8, 8, 33):
        for step in (-1.0, 1.0):
            ratio = math.log(density(distance + step) / density(distance))
            assert abs(ratio) <= 1 / (2 * c) + 1e-7
    assert math.log(density(3.0) / density(2.0)) == pytest.approx(-1 / (2 * c), rel=1e-6)
    noise = draws(LAWS[4], 1, 4000)[:, 0]
    assert stats.kstest(noise, stats.laplace(scale=2.0).cdf).pvalue > 1e-4


def test_a_distribution_has_the_right_event_norm_and_multiplier() -> None:
    shown = [(law.event, law.norm, law.noise_multiplier, law.layout) for law in LAWS]
    assert shown == [
        (gaussian(4.0), "l2", 4.0, "vector"),
        (gaussian(4.0), "l2", 4.0, "symmetric"),
        (gaussian(4.0), "l2", 4.0, "cube"),
        (laplace(4.0), "l1", 4.0, "vector"),
        (approximate(0.5, 0.0), "nuclear", 1.0, "symmetric"),
        (gaussian(4.0), "l2", 4.0, "symmetric"),
        (laplace(4.0), "l1", 4.0, "symmetric"),
        (approximate(0.25, 0.0), "l2", 4.0, "symmetric"),
        (approximate(0.25, 0.0), "l2", 4.0, "cube"),
    ]


@every_law
def test_a_distribution_is_plain_data(law: NoiseDistribution) -> None:
    assert pickle.loads(pickle.dumps(law)) == law
    assert len({law, pickle.loads(pickle.dumps(law))}) == 1


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_distribution_without_noise_is_refused(value: float) -> None:
    for law in (Gaussian, Symmetric, Cube, Laplace, SymmetricRadial, CubeRadial):
        with pytest.raises(InvalidInput, match="noise_multiplier="):
            law(noise_multiplier=value)
    with pytest.raises(InvalidInput, match="epsilon="):
        WishartDifference(epsilon=value)


@every_law
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2 * LARGEST_SCALE])
def test_a_scale_out_of_bounds_is_refused(law: NoiseDistribution, scale: float) -> None:
    with pytest.raises(InvalidInput, match="grid steps must be positive"):
        law.draw(key(), 3, scale_in_steps=scale)


@every_law
@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 10**6)])
def test_a_range_outside_the_layout_is_refused(law: NoiseDistribution, start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="must lie in"):
        law.draw(key(), 3, scale_in_steps=1.0, start=start, stop=stop)


@every_law
def test_the_distance_must_stay_below_what_rounding_up_pays_for(law: NoiseDistribution) -> None:
    check_tail(law, draws=10**10, delta=1e-12)
    edge = 2.0**60 * 1000 * law.tail_mass
    check_tail(law, draws=1000, delta=edge * (1 + 1e-9))
    for delta in (edge * (1 - 1e-9), math.nan):
        with pytest.raises(Refused, match="at most 2\\^-60"):
            check_tail(law, draws=1000, delta=delta)


@every_law
def test_a_pure_claim_holds_up_to_the_samplers_bits(law: NoiseDistribution) -> None:
    draws = int(PURE_TAIL / law.tail_mass)
    check_tail(law, draws=draws, delta=0.0)
    with pytest.raises(Refused, match="if delta is 0"):
        check_tail(law, draws=2 * draws, delta=0.0)


KEY = subkey(bytes(32), label="noise", info=b"stack")
ORDER, COUNT = 3, 5000
NOISE = SymmetricStack(noise_multiplier=1.0)


def test_the_noise_is_isometric_in_every_matrix():
    size = Layout(kind="stack", order=ORDER, count=COUNT).size
    assert size == COUNT * 6
    drawn = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, stop=size) / 2.0**20
    stack = unpack_stack(drawn, ORDER)
    assert (stack == stack.transpose(0, 2, 1)).all()
    stds = stack.std(axis=0)
    # The std of 5,000 draws has a relative error of 0.01. At five times that, a false alarm for any of the six has a
    # probability below 1e-5.
    assert stds == pytest.approx(np.where(np.eye(ORDER), 1.0, 0.5**0.5), rel=0.05)


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 100])
def test_a_tile_is_drawn_alone(start):
    whole = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, stop=200)
    tile = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, start=start, stop=137)
    assert (tile == whole[start:137]).all()


def test_a_stack_states_its_end_and_joint_noise_finds_its_distribution():
    with pytest.raises(InvalidInput, match="pass its end"):
        NOISE.draw(KEY, ORDER, scale_in_steps=1.0)
    assert isinstance(JointGaussian(noise_multiplier=2.0).part("stack"), SymmetricStack)


def by_counting(order: int, indices: int) -> NDArray[np.float64]:
    packed = itertools.combinations_with_replacement(range(order), indices)
    return np.array([len(set(itertools.permutations(entry))) ** -0.5 for entry in packed])


@pytest.mark.parametrize(("weights", "indices"), [(symmetric_weights, 2), (cube_weights, 3)])
@given(order=st.integers(1, 12), data=st.data())
def test_any_range_of_weights_is_that_of_counted_entries(
    weights: Callable[..., NDArray[np.float64]], indices: int, order: int, data: st.DataObject
) -> None:
    counted = by_counting(order, indices)
    start, stop = sorted(data.draw(st.integers(0, counted.size)) for _ in range(2))
    np.testing.assert_allclose(weights(order, start=start, stop=stop), counted[start:stop], rtol=2.0**-52, atol=0)


def test_a_far_range_of_a_huge_layout_is_computed_quickly() -> None:
    order = 10**6
    size = order * (order + 1) // 2
    last = symmetric_weights(order, start=size - 6, stop=size)
    np.testing.assert_allclose(last, [1, math.sqrt(0.5), math.sqrt(0.5), 1, math.sqrt(0.5), 1])
    size = order * (order + 1) * (order + 2) // 6
    np.testing.assert_allclose(
        cube_weights(order, start=size - 4, stop=size), [1, math.sqrt(1 / 3), math.sqrt(1 / 3), 1]
    )


RADIAL_LAPLACE_LAWS = (SymmetricRadial(noise_multiplier=0.5), CubeRadial(noise_multiplier=0.5))
WEIGHTS = {"symmetric": symmetric_weights, "cube": cube_weights}
FALSE_ALARM = 1e-3
SCALE = 2.0**18
every_law_of_radial_laplace = pytest.mark.parametrize("law", RADIAL_LAPLACE_LAWS, ids=lambda law: law.name)


def isometric(law, order, count):
    """Return independent draws in coordinates of equal variance, in units of the scale."""
    size = Layout(kind=law.layout, order=order).size
    weights = WEIGHTS[law.layout](order, start=0, stop=size)
    keys = (subkey(bytes(32), label="test", info=f"{law.name} {index}".encode()) for index in range(count))
    return np.array([law.draw(key, order, scale_in_steps=SCALE) for key in keys]) / weights / SCALE


@every_law_of_radial_laplace
@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_length_is_of_the_stated_density_and_the_direction_uniform(law, order):
    """Test length and direction of radial Laplace noise by Kolmogorov and Smirnov.

    The length is Gamma(p) in p coordinates, and the cosine of the angle to any axis is that of a uniform direction.
    """
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
    """Integrate the density of a normal vector with random length: it must be proportional to ``exp(-length)``.

    So a shift by Delta changes the density at scale s by a factor of at most ``exp(Delta / s)``. Lengths are 0.1 to 30.
    """
    radius = stats.chi(p + 1)

    def log_density(length):
        def of(r):
            return radius.pdf(r) * r**-p * math.exp(-((length / r) ** 2) / 2)

        return math.log(integrate.quad(of, 0, 60, limit=400, epsabs=0, points=(0.5, 2, 5, 10))[0])

    start = log_density(0.1)
    for length in (1.0, 5.0, 30.0):
        assert log_density(length) - start == pytest.approx(0.1 - length, rel=1e-6)


@every_law_of_radial_laplace
def test_a_coordinate_has_the_stated_std(law):
    noise = isometric(law, 3, 1500)
    assert noise.std() == pytest.approx(law.spread(3), rel=0.06)


@every_law_of_radial_laplace
def test_the_event_is_pure_with_its_epsilon_rounded_up(law):
    assert law.event == approximate(2.0, 0.0)
    third = type(law)(noise_multiplier=3.0)
    assert third.event["epsilon"] * 3 >= 1
    assert third.event["epsilon"] == pytest.approx(1 / 3, rel=1e-15)


@every_law_of_radial_laplace
def test_a_scale_is_refused_before_anything_depends_on_the_key(law):
    edge = LARGEST_SCALE / (law.spread(5) + 16)
    law.draw(subkey(bytes(32), label="test", info=b""), 5, scale_in_steps=edge)
    with pytest.raises(InvalidInput, match="coarser grid"):
        law.draw(subkey(bytes(32), label="test", info=b""), 5, scale_in_steps=edge * 1.001)
