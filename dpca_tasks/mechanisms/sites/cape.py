"""CAPE: the noise of a sum over sites whose messages carry masks that cancel, accounted for by all messages together.

A site sends its weighted sum, a share of noise, and a mask; all masks add up to 0. Of S sites C may collude with the
aggregator and D may fall silent, so the shares of the ``H = S - C - D`` others carry the guarantee by themselves.

>>> [round(Cape(sites=10, colluders=colluders).noise(scale=1.0).total_std, 3) for colluders in (None, 0)]
[1.195, 1.0]
>>> printed = Cape(sites=10, masks="gaussian", calibration="paper", colluders=0).noise(scale=1.0)
>>> round(printed.view_mu(), 3)  # one message alone has a mu of 1
1.348

`masked_messages` makes the messages of one round with Gaussian masks, as published: floating point, from one key, for
reproductions alone. Real messages are integers under masks of a ring, and no one has all the keys. Floats make no claim
to the bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.site_noise import least_noise, usual_colluders, view_mu
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.noise.variates import normals
from dpca_tasks.sites.masks import gaussian_masks

type Floats = NDArray[np.float64]

Masks = Literal["uniform", "gaussian"]

LARGEST_RATIO = 1e12
"""The variance of Gaussian masks over that of a share, beyond which their sum in float64 is no longer 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise:
    """The variances of a round of messages, in the weighted units of the sum.

    ``share_variance`` is that of each site's own noise; ``mask_variance`` is u, where masks have covariance
    ``u (I - 1 1^T / S)``, infinite for uniform masks of a ring. ``silent`` sites may be missing from the sum.
    """

    sites: int
    colluders: int
    silent: int
    share_variance: float
    mask_variance: float

    @property
    def total_std(self) -> float:
        """The std of the sum of all messages, where no site is silent."""
        return math.sqrt(self.sites * self.share_variance)

    def view_mu(self, *, distance: float = 1.0, colluders: int | None = None) -> float:
        """Return mu of all messages together, for a record that moves its site's weighted sum by a distance.

        Parameters
        ----------
        distance : float
        colluders : int, optional
            Sites whose masks and noise are known to who sees the messages; those that are tolerated by default.
        """
        known = self.colluders if colluders is None else colluders
        honest = self.sites - self.silent - known
        return view_mu(
            sensitivity=distance, honest=honest, share_variance=self.share_variance, mask_variance=self.mask_variance
        )

    def view_epsilon(self, delta: float, *, distance: float = 1.0, colluders: int | None = None) -> float:
        """Return the epsilon that all messages together really give at a delta."""
        mu = self.view_mu(distance=distance, colluders=colluders)
        return gaussian_epsilon(noise_multiplier=1 / mu, delta=delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cape:
    """Correlated noise for a sum over sites.

    Parameters
    ----------
    sites : int
        S.
    colluders : int, optional
        C, the sites that may tell the aggregator all they know; below a third of the others by default.
    dropouts : int
        D, the sites that may be missing from the sum that is opened.
    masks : {"uniform", "gaussian"}
        ``uniform``: of a ring, which hide perfectly. ``gaussian``: as published, in floating point, for reproductions.
    mask_ratio : float
        The variance of Gaussian masks over that of a share.
    calibration : {"tight", "paper"}
        ``tight``: the least noise with which all messages together keep the guarantee. ``paper``: share ``t^2 / S`` and
        mask ``(1 - 1/S) t^2``, where one message alone would keep it with std t; `SharedNoise.view_epsilon` states what
        all of them give, which is more.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise. Its masks of the
    aggregator protect a message on its way only; here messages are encrypted, and there are none.
    """

    sites: int
    colluders: int | None = None
    dropouts: int = 0
    masks: Masks = "uniform"
    mask_ratio: float = 1e6
    calibration: Calibration = "tight"

    def __post_init__(self) -> None:
        """Refuse a number of sites of which none would be honest, or a calibration without its masks."""
        if self.sites < 2:
            raise InvalidInput(f"sites={self.sites} must be at least 2; one owner's noise is fitted by itself.")
        if self.dropouts < 0 or self.tolerated < 0 or self.honest < 1:
            raise InvalidInput(
                f"colluders={self.tolerated} and dropouts={self.dropouts} must be at least 0 and leave one of "
                f"{self.sites} sites: its noise has to stay unknown; tolerate fewer."
            )
        if self.calibration == "paper" and self.masks != "gaussian":
            raise InvalidInput("calibration=paper is printed for Gaussian masks; use masks=gaussian with it.")
        if not 1.0 <= self.mask_ratio <= LARGEST_RATIO:
            raise InvalidInput(
                f"mask_ratio={self.mask_ratio!r} must be from 1 to {LARGEST_RATIO:g}, so that masks hide and cancel; "
                "1e6 is usual."
            )

    @property
    def tolerated(self) -> int:
        """C."""
        return usual_colluders(self.sites) if self.colluders is None else self.colluders

    @property
    def honest(self) -> int:
        """H, the sites whose shares carry the guarantee."""
        return self.sites - self.tolerated - self.dropouts

    def noise(self, *, scale: float) -> SharedNoise:
        """Return the variances with which a site's ``distance / mu`` is at least met.

        Parameters
        ----------
        scale : float
            The std of pooled noise: ``distance / mu``, at sites that differ the largest (`least_scale`).
        """
        if self.calibration == "paper":
            return self._shared(scale**2 / self.sites, scale**2)
        if self.masks == "uniform":
            return self._shared(scale**2 / self.honest, math.inf)
        share = scale**2 * (1 / self.honest + (1 - 1 / self.honest) / (1 + self.mask_ratio))
        return self._shared(share, self.mask_ratio * share)

    def _shared(self, share: float, mask: float) -> SharedNoise:
        return SharedNoise(
            sites=self.sites,
            colluders=self.tolerated,
            silent=self.dropouts,
            share_variance=share,
            mask_variance=mask,
        )


def mu_of(*, epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian is (epsilon, delta)-DP."""
    return 1 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta)


def least_scale(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the std of pooled noise that gives every site its mu: of the site that needs most."""
    return math.sqrt(least_noise(weights=weights, sensitivities=sensitivities, mus=mus))


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
