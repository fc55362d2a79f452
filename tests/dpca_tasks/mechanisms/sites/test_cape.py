"""CAPE's variances against explicit conditioning of all messages, and what is refused.

Messages in floating point: their masks cancel, and hide what each says by itself.
"""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.sites.cape import Cape, least_scale, masked_messages, mu_of


def conditioned_mu(noise):
    """The mu of a unit shift of site 0 in the messages of all but the silent, given the last sites' masks and noise."""
    count, known = noise.sites - noise.silent, noise.colluders
    masks = noise.mask_variance * (np.eye(noise.sites) - 1 / noise.sites)
    honest, seen = np.arange(count - known), np.arange(count - known, noise.sites)
    given = masks[np.ix_(honest, honest)]
    if seen.size:
        cross = masks[np.ix_(honest, seen)]
        given = given - cross @ np.linalg.pinv(masks[np.ix_(seen, seen)]) @ cross.T
    return np.sqrt(np.linalg.inv(given + noise.share_variance * np.eye(len(honest)))[0, 0])


@pytest.mark.parametrize(("sites", "colluders", "dropouts"), [(2, 0, 0), (5, 1, 0), (10, 3, 2), (7, 0, 3), (4, 3, 0)])
@pytest.mark.parametrize("ratio", [1.0, 30.0, 1e6])
def test_gaussian_masks_give_exactly_what_is_asked(sites, colluders, dropouts, ratio):
    cape = Cape(sites=sites, colluders=colluders, dropouts=dropouts, masks="gaussian", mask_ratio=ratio)
    noise = cape.noise(scale=2.0)
    assert noise.view_mu() == pytest.approx(0.5, rel=1e-12)
    assert noise.view_mu() == pytest.approx(conditioned_mu(noise), rel=1e-6)


def test_the_total_has_pooled_noise_without_colluders_and_more_with_each():
    stds = [Cape(sites=10, colluders=colluders).noise(scale=3.0).total_std for colluders in range(4)]
    np.testing.assert_allclose(stds, [3.0 * np.sqrt(10 / honest) for honest in (10, 9, 8, 7)], rtol=1e-12)
    assert Cape(sites=10).tolerated == 3


@pytest.mark.parametrize(("colluders", "epsilon"), [(0, 1.39), (3, 1.55)])
def test_the_printed_variances_give_less_privacy_than_they_claim(colluders, epsilon):
    cape = Cape(sites=10, colluders=colluders, masks="gaussian", calibration="paper")
    noise = cape.noise(scale=1 / mu_of(epsilon=1.0, delta=1e-5))
    assert noise.view_epsilon(1e-5) == pytest.approx(epsilon, abs=0.01)
    assert noise.share_variance + noise.mask_variance * (1 - 1 / 10) == pytest.approx(
        mu_of(epsilon=1, delta=1e-5) ** -2
    )


def test_the_site_that_needs_most_gets_its_mu_and_every_other_less():
    weights, mus = [1.0, 0.5, 0.1], [0.4, 0.3, 0.2]
    noise = Cape(sites=3, colluders=1).noise(scale=least_scale(weights=weights, sensitivities=[1.4] * 3, mus=mus))
    reached = [noise.view_mu(distance=1.4 * weight) / mu for weight, mu in zip(weights, mus, strict=True)]
    assert max(reached) == reached[0] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sites": 1}, "sites=1 must be at least 2"),
        ({"sites": 4, "colluders": 3, "dropouts": 1}, "colluders=3 and dropouts=1"),
        ({"sites": 4, "colluders": -1}, "colluders=-1"),
        ({"sites": 4, "calibration": "paper"}, "masks=gaussian"),
        ({"sites": 4, "masks": "gaussian", "mask_ratio": 1e13}, "mask_ratio=1"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(InvalidInput, match=said):
        Cape(**settings)


def test_the_sum_of_messages_is_that_of_the_sites_with_the_stated_noise_and_weights():
    """The variance of 50,000 draws has a std of 0.0063 of itself; a false alarm of 6 stds has a chance of 2e-9."""
    size, noise = 100_000, Cape(sites=10, masks="gaussian").noise(scale=2.0)
    sums, weights = np.arange(10.0)[:, None] * np.ones(size), np.repeat([1.0, 0.5], size // 2)
    messages = masked_messages(sums, noise, weights, key=bytes(32))
    rest = (messages.sum(axis=0) - 45.0) / weights
    for half in np.split(rest, 2):
        assert abs(np.var(half) / noise.total_std**2 - 1) < 6 * np.sqrt(2 / half.size)
    assert np.std(messages[0] / weights) > 100 * noise.total_std, "one message alone says nothing"
