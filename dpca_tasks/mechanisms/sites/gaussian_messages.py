"""Messages of one round with Gaussian masks, as published: floating point, from one key, for reproductions alone.

Real messages are integers under masks of a ring, and no one has all the keys. Floats make no claim to the bit.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.sites.cape import SharedNoise
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.noise.variates import normals
from dpca_tasks.sites.masks import gaussian_masks

type Floats = NDArray[np.float64]


def masked_messages(sums: Floats, noise: SharedNoise, weights: Floats, *, key: bytes) -> Floats:
    """Return each site's message: its weighted sum, its share of noise, and its mask.

    Parameters
    ----------
    sums : float64 array of shape (sites, size)
        Packed statistics, each already multiplied by its site's weight.
    noise : SharedNoise
        With Gaussian masks.
    weights : float64 array of shape (size,)
        The std of each packed coordinate of isometric noise of std 1.
    key : bytes of length 32
    """
    sites, size = sums.shape
    masks = subkey(key, label="masks", info=b"")
    messages = gaussian_masks(masks, sites=sites, size=size, variance=noise.mask_variance)
    shares = normals(subkey(key, label="shares", info=b""), start=0, stop=sums.size).reshape(sums.shape)
    messages += math.sqrt(noise.share_variance) * shares
    messages *= weights
    messages += sums
    return messages
