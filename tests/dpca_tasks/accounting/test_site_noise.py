"""The joint view of noised messages against explicit conditioning of Gaussians."""

import itertools

import numpy as np
import pytest

from dpca_tasks.accounting.calibration import gaussian_epsilon
from dpca_tasks.accounting.site_noise import (
    gain_over_equal_weights,
    least_noise,
    rosters_mu,
    usual_colluders,
    view_mu,
)
from dpca_tasks.errors import InvalidInput


def conditioned_mu(sites, colluders, share, mask):
    """The shift of site 0's message in the covariance of honest messages, given the colluders' masks."""
    masks = mask * (np.eye(sites) - 1 / sites)
    seen, honest = np.arange(sites - colluders, sites), np.arange(sites - colluders)
    given = masks[np.ix_(honest, honest)]
    if colluders:
        cross = masks[np.ix_(honest, seen)]
        given = given - cross @ np.linalg.solve(masks[np.ix_(seen, seen)], cross.T)
    return np.sqrt(np.linalg.inv(given + share * np.eye(len(honest)))[0, 0])


@pytest.mark.parametrize(("sites", "colluders"), [(2, 0), (5, 0), (5, 1), (10, 3), (30, 9), (4, 3)])
@pytest.mark.parametrize(("share", "mask"), [(0.1, 1.0), (1.0, 50.0), (0.3, 0.01)])
def test_the_view_is_that_of_conditioned_gaussians(sites, colluders, share, mask):
    found = view_mu(sensitivity=2.0, honest=sites - colluders, share_variance=share, mask_variance=mask)
    assert found == pytest.approx(2.0 * conditioned_mu(sites, colluders, share, mask), rel=1e-10)


@pytest.mark.parametrize(("colluders", "epsilon"), [(0, 1.39), (3, 1.55)])
def test_printed_variances_give_more_than_they_claim(colluders, epsilon):
    """Ten sites at (1, 1e-5), where one message alone has a mu of 0.2681."""
    mu = 0.268086 * view_mu(sensitivity=1.0, honest=10 - colluders, share_variance=0.1, mask_variance=1.0)
    assert gaussian_epsilon(noise_multiplier=1 / mu, delta=1e-5) == pytest.approx(epsilon, abs=0.01)


def test_the_least_noise_gives_the_worst_site_its_mu_and_every_other_more():
    rng = np.random.default_rng(8)
    for honest in (1, 3, 8):
        weights, mus = rng.uniform(0.1, 1, 8).tolist(), rng.uniform(0.2, 2, 8).tolist()
        share = least_noise(weights=weights, sensitivities=[1.5] * 8, mus=mus) / honest
        reached = [view_mu(sensitivity=1.5 * w, honest=honest, share_variance=share) for w in weights]
        assert max(np.array(reached) / mus) == pytest.approx(1.0, rel=1e-12)


def test_the_same_message_in_two_sums_is_their_difference():
    everyone, without_last = [1, 1, 1, 1], [1, 1, 1, 0]
    terms = {"sensitivity": 1.0, "share_variance": 0.25}
    np.testing.assert_allclose(rosters_mu([everyone], **terms), 1.0)
    np.testing.assert_allclose(rosters_mu([everyone, everyone], **terms), 1.0, err_msg="a resend tells nothing new")
    np.testing.assert_allclose(rosters_mu([everyone, without_last], **terms), [2 / 3**0.5] * 3 + [2.0])
    leave_one_out = 1 - np.eye(4)
    np.testing.assert_allclose(rosters_mu(leave_one_out, **terms), 2.0)


def test_the_gain_over_equal_weights_is_least_for_equal_sizes():
    """Proposition 1, over all ways to divide 12 records over 3 sites, and its extremes for 1,000 over 10."""
    parts = [p for p in itertools.product(range(1, 11), repeat=3) if sum(p) == 12]
    gains = {p: gain_over_equal_weights(p) for p in parts}
    assert min((gain, parts) for parts, gain in gains.items())[1] == (4, 4, 4)
    assert sorted(max((gain, parts) for parts, gain in gains.items())[1]) == [1, 1, 10]
    assert gain_over_equal_weights([100] * 10) == pytest.approx(10.0)
    assert gain_over_equal_weights([1] * 9 + [991]) == pytest.approx(90_000, rel=1e-4)


def test_someone_has_to_be_honest():
    assert [usual_colluders(sites) for sites in (1, 3, 4, 10)] == [0, 0, 1, 3]
    with pytest.raises(InvalidInput, match="honest"):
        view_mu(sensitivity=1.0, honest=0, share_variance=1.0)
