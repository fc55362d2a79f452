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
factor. Here ``v = FINE[parts] c^2``, and u is above `LARGEST` / 5: also where both are divided by ``parts``, v is at
least ``32 c^2`` and u above `LARGEST` / 30, so r^2 is above 31, and the factor below ``1 + 1e-260``.

References
----------
Micciancio and Walter (2017), Gaussian sampling over the integers: efficient, generic, constant-time, Section 4.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.discrete_gaussian import LARGEST, discrete_gaussians
from dpca_tasks.noise.keystream import SecretKey, subkey

FINE = {2: 64, 6: 192}
"""The squared scale of the fine draw, in squared steps of the coarse one, for parameters that can be divided by two, or
by two and three. It is part of the definition."""
WIDEST = {2: LARGEST * 2**20, 6: LARGEST * 2**18}
"""The largest squared scale: up to it the fine draw is one of the arithmetic."""


def drawable(squared_scale: int, *, parts: int = 2) -> int:
    """Return the least squared scale, from this one on, of which all parts can be drawn: 1, and 1/2 or 1/3 and 1/6."""
    grain = parts * _coarseness(squared_scale, parts) ** 2
    found = -(-squared_scale // grain) * grain
    return found if found == squared_scale else drawable(found, parts=parts)


def wide_discrete_gaussians(
    key: SecretKey, *, size: int, squared_scale: int, part: int = 1, parts: int = 2
) -> NDArray[np.int64]:
    """Return the draws of a key.

    Parameters
    ----------
    key : SecretKey
        One for each purpose.
    size : int
    squared_scale : int
        The parameter ``s^2``, one that `drawable` returns.
    part, parts : int
        The parameter is ``s^2 / part``, where ``part`` divides ``parts``, 2 or 6.
    """
    if squared_scale != (found := drawable(squared_scale, parts=parts)):
        raise InvalidInput(f"squared_scale={squared_scale} is not drawable; use {found}.")
    coarseness, smooth = _coarseness(squared_scale, parts), FINE[parts]
    if coarseness == 1:
        return discrete_gaussians(key, start=0, stop=size, squared_scale=squared_scale // part)
    coarse, fine = (subkey(key.secret, label=label, info=b"") for label in ("coarse", "fine"))
    scale = (squared_scale // coarseness**2 - smooth) // part
    drawn = discrete_gaussians(coarse, start=0, stop=size, squared_scale=scale)
    drawn *= coarseness
    drawn += discrete_gaussians(fine, start=0, stop=size, squared_scale=smooth * coarseness**2 // part)
    return drawn


def _coarseness(squared_scale: int, parts: int) -> int:
    """Return the least power of two c such that the coarse draw of ``s^2`` is one of the arithmetic."""
    if not 1 <= squared_scale <= WIDEST[parts]:
        most = math.log2(WIDEST[parts])
        raise InvalidInput(f"squared_scale={squared_scale} must be from 1 to 2^{most:.0f}; use a coarser grid.")
    coarseness = 1
    while coarseness**2 * LARGEST < squared_scale:
        coarseness *= 2
    return coarseness
