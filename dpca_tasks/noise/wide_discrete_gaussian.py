r"""Draws from discrete Gaussians too wide for the arithmetic of one draw: a coarse draw, smoothed by a fine one.

>>> from dpca_tasks.noise.keystream import subkey
>>> key = subkey(bytes(32), label="noise", info=b"share")
>>> wide_discrete_gaussians(key, size=3, squared_scale=drawable(2**40 + 1)).shape
(3,)

Notes
-----
Let y and z be discrete Gaussians of parameters u and v, and ``x = c y + z``. By completing the square,

    y^2 / 2u + (x - c y)^2 / 2v = x^2 / 2(c^2 u + v) + (y - m)^2 / 2r^2,    r^2 = u v / (c^2 u + v),

with m a multiple of x. Summed over all integers y, the second term gives the same for every m up to a factor
``1 + 4 exp(-2 pi^2 r^2)`` by Poisson summation. So x is the discrete Gaussian of parameter ``c^2 u + v`` up to that
factor. Here ``v = FINE c^2``, and u is above `LARGEST` / 8: r^2 is above 31 also where both are halved, and the factor
below ``1 + 1e-260``.

References
----------
Micciancio and Walter (2017), Gaussian sampling over the integers: efficient, generic, constant-time, Section 4.
"""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.discrete_gaussian import LARGEST, discrete_gaussians
from dpca_tasks.noise.keystream import SecretKey, subkey

FINE = 64
"""The squared scale of the fine draw, in squared steps of the coarse one. It is part of the definition."""
WIDEST = LARGEST * (LARGEST // FINE)
"""The largest squared scale: up to it the fine draw is one of the arithmetic."""


def drawable(squared_scale: int) -> int:
    """Return the least squared scale, from this one on, that can be drawn and halved."""
    grain = 2 * _coarseness(squared_scale) ** 2
    return -(-squared_scale // grain) * grain


def wide_discrete_gaussians(
    key: SecretKey, *, size: int, squared_scale: int, is_halved: bool = False
) -> NDArray[np.int64]:
    """Return the draws of a key.

    Parameters
    ----------
    key : SecretKey
        One for each purpose.
    size : int
    squared_scale : int
        The parameter ``s^2``, one that `drawable` returns.
    is_halved : bool
        Whether the parameter is ``s^2 / 2``.
    """
    if squared_scale != drawable(squared_scale):
        raise InvalidInput(f"squared_scale={squared_scale} is not drawable; use {drawable(squared_scale)}.")
    coarseness, half = _coarseness(squared_scale), 1 + is_halved
    if coarseness == 1:
        return discrete_gaussians(key, start=0, stop=size, squared_scale=squared_scale // half)
    coarse, fine = (subkey(key.secret, label=label, info=b"") for label in ("coarse", "fine"))
    scale = (squared_scale // coarseness**2 - FINE) // half
    drawn = discrete_gaussians(coarse, start=0, stop=size, squared_scale=scale)
    drawn *= coarseness
    drawn += discrete_gaussians(fine, start=0, stop=size, squared_scale=FINE * coarseness**2 // half)
    return drawn


def _coarseness(squared_scale: int) -> int:
    """Return the least power of two c such that the coarse draw of ``s^2`` is one of the arithmetic."""
    if not 1 <= squared_scale <= WIDEST:
        raise InvalidInput(f"squared_scale={squared_scale} must be from 1 to 2^46; use a coarser grid.")
    coarseness = 1
    while coarseness**2 * LARGEST < squared_scale:
        coarseness *= 2
    return coarseness
