"""A private estimate of the quality of another release, computed from sums that were released with noise.

Examples
--------
>>> found = PrivateEstimate(sums=np.array([6.0, 3.0]), manifest={"outcome": {"share": 0.66, "share_std": 0.02}})
>>> found.outcome["share"]
0.66
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateEstimate(Artifact):
    """An estimate of the quality of a release, derived from sums released with noise.

    Parameters
    ----------
    sums : array of shape (n_sums,)
        The released sums.
    manifest : mapping
        Public facts. ``outcome`` has the estimates and their standard deviations by name. ``plan`` states which release
        was evaluated.

    Raises
    ------
    Invalid
        If the array or the manifest does not have this form.
    """

    kind = "private_estimate"
    noun = "private estimate"
    dimensions = {"sums": ("sum",)}  # noqa: RUF012
    exports = {"npz": npz}  # noqa: RUF012

    sums: NDArray[np.float64]
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the fields, and freeze copies of them."""
        sums = frozen("sums", self.sums, ndim=1)
        object.__setattr__(self, "sums", sums)
        facts = checked_manifest(self.manifest, kind=self.kind, facts={}, shape={"n_sums": sums.size})
        object.__setattr__(self, "manifest", facts)

    def __reduce__(self) -> tuple[partial["PrivateEstimate"], tuple[()]]:
        """Rebuild through the constructor, so that a copy is as read-only as the original."""
        return partial(PrivateEstimate, sums=self.sums, manifest=self.manifest), ()

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> "PrivateEstimate":
        """Build an estimate from a stored array and a manifest."""
        return cls(sums=arrays["sums"], manifest=manifest)

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The estimates and their standard deviations by name. An estimate that noise makes impossible is None."""
        return self.manifest.get("outcome") or {}

    def summary(self) -> dict[str, Any]:
        """Return the estimates by name, and under ``evaluated`` the release that they evaluate."""
        return {"evaluated": self.manifest.get("plan", {}).get("evaluated"), **self.outcome}

    def headline(self) -> str:
        """Return a phrase that names the evaluated release."""
        return f"an estimate of the quality of {self.manifest.get('plan', {}).get('evaluated', 'a release')}"
