"""Messages in floating point: their masks cancel, and hide what each says by itself."""

import numpy as np

from dpca_tasks.mechanisms.sites.cape import Cape
from dpca_tasks.mechanisms.sites.gaussian_messages import masked_messages


def test_the_sum_of_messages_is_that_of_the_sites_with_the_stated_noise_and_weights():
    """The variance of 50,000 draws has a std of 0.0063 of itself; a false alarm of 6 stds has a chance of 2e-9."""
    size, noise = 100_000, Cape(sites=10, masks="gaussian").noise(scale=2.0)
    sums, weights = np.arange(10.0)[:, None] * np.ones(size), np.repeat([1.0, 0.5], size // 2)
    messages = masked_messages(sums, noise, weights, key=bytes(32))
    rest = (messages.sum(axis=0) - 45.0) / weights
    for half in np.split(rest, 2):
        assert abs(np.var(half) / noise.total_std**2 - 1) < 6 * np.sqrt(2 / half.size)
    assert np.std(messages[0] / weights) > 100 * noise.total_std, "one message alone says nothing"
