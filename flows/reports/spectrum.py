"""Released eigenvalues with their noise edge (a bound on the eigenvalues of noise), and a component's largest loadings.

This module draws eigenvalues as text; `flows.reports.release_charts` draws both as charts.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Invalid


def top_loadings(artifact: PrivateSubspace, *, component: int, count: int = 12) -> list[dict[str, Any]]:
    """Return the features with the largest nonzero loadings of a component, by decreasing absolute loading.

    Parameters
    ----------
    artifact : PrivateSubspace
        Features without names are named by their column number, from 1.
    component : int
        Number of the component, from 1.
    count : int
        Largest number of features.

    Raises
    ------
    Invalid
        If the release has no such component.
    """
    if not 1 <= component <= artifact.n_components:
        raise Invalid(f"component {component} does not exist in this release; choose 1 to {artifact.n_components}.")
    loadings, names = artifact.components[component - 1], artifact.feature_names
    largest = np.argsort(-np.abs(loadings), kind="stable")[:count]
    return [
        {"feature": f"column {at + 1}" if names is None else names[at], "loading": float(loadings[at])}
        for at in largest.tolist()
        if loadings[at] != 0.0
    ]


_BELOW_EDGE = 4.0  # the log scale begins at the noise edge divided by this number
_LEAST_SHOWN = 1e-4  # without a noise edge, the log scale begins at this fraction of the largest eigenvalue, or higher
_BEYOND = 10  # number of eigenvalues shown beyond the components' eigenvalues


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """Leading eigenvalues of a released matrix, with the noise edge.

    Parameters
    ----------
    eigenvalues : tuple of float, data units squared
        Descending, noise included.
    n_components : int
        k, the number of components of the release.
    noise_edge : float, data units squared, optional
        Without data, the eigenvalues of the noise stay below this value with probability 0.99; None if unknown.
    verdict : str, optional
        The sentence in which the release states its quality.
    counted : int, optional
        The number of components above the noise, if the release states it. For a release in rounds it is counted after
        the map of the last round, and ``noise_edge`` is only an upper bound for all rounds.
    """

    eigenvalues: tuple[float, ...]
    n_components: int
    noise_edge: float | None
    verdict: str | None = None
    counted: int | None = None

    @classmethod
    def of(cls, artifact: PrivateSubspace, *, noise_edge: float | None) -> "Spectrum":
        """Return the spectrum of an artifact.

        Raises
        ------
        Invalid
            If the artifact has directions without eigenvalues.
        """
        values = artifact.eigenvalues if artifact.spectrum is None else artifact.spectrum
        if values is None:
            raise Invalid(
                "this release has directions without eigenvalues, so it has no spectrum; use a "
                "mechanism that releases a matrix, such as analyze_gauss"
            )
        return cls(
            eigenvalues=tuple(values.tolist()),
            n_components=artifact.n_components,
            noise_edge=noise_edge,
            verdict=artifact.outcome.get("verdict"),
            counted=artifact.outcome.get("above_noise") if "rounds" in artifact.outcome else None,
        )

    @property
    def above_noise(self) -> int | None:
        """The number of ``eigenvalues`` above the noise; None if there is no noise edge."""
        if self.counted is not None:
            return min(self.counted, len(self.eigenvalues))  # only the leading eigenvalues are kept
        if self.noise_edge is None:
            return None
        return sum(value > self.noise_edge for value in self.eigenvalues)

    @property
    def lowest(self) -> float:
        """The lower end of the log scale on which the eigenvalues are drawn."""
        if self.noise_edge:
            return self.noise_edge / _BELOW_EDGE
        largest = max([*self.eigenvalues, 0.0]) or 1.0
        least = min((value for value in self.eigenvalues if value > 0.0), default=largest)
        return max(least / 2.0, _LEAST_SHOWN * largest)

    def facts(self) -> dict[str, Any]:
        """Return the numbers as plain JSON values."""
        return {"values": list(self.eigenvalues), "noise_edge": self.noise_edge, "above_noise": self.above_noise}

    def text(self, *, width: int = 48) -> str:
        """Return the eigenvalues as horizontal bars on a log scale; the part below the noise edge has another shade.

        The smallest eigenvalues have no bars; only their number is stated.
        """
        shown = self.eigenvalues[: self.n_components + _BEYOND]
        units = width / max(math.log(max(shown[0], 2.0 * self.lowest) / self.lowest), 1e-9)
        lines = [self._head()]
        for rank, value in enumerate(shown, start=1):
            within = min(value, value if self.noise_edge is None else self.noise_edge)
            long, shaded = (
                max(round(units * math.log(max(end, self.lowest) / self.lowest)), 0) for end in (value, within)
            )
            shaded = 0 if self.noise_edge is None else shaded
            bar = "░" * shaded + "█" * (long - shaded)
            lines.append(f"{rank:>4} {'●' if rank <= self.n_components else ' '}  {bar:<{width}}  {value:,.1f}")
        more = (
            [f"{'':>4} … and {len(self.eigenvalues) - len(shown)} more"] if len(shown) < len(self.eigenvalues) else []
        )
        return "\n".join([*lines, *more, self._foot()])

    def _head(self) -> str:
        if self.noise_edge is None:
            return "eigenvalues of the release, log scale; the release states no noise floor"
        return (
            f"eigenvalues of the release, log scale; ░ noise alone exceeds {self.noise_edge:,.1f} "
            "less than once in 100 times"
        )

    def _foot(self) -> str:
        has = f"● marks the {self.n_components} released as {_components(self.n_components)}"
        above = self.above_noise
        if above is None:
            return has
        return f"{above} of {len(self.eigenvalues)} {'is' if above == 1 else 'are'} above the noise; {has}"


def _components(count: int) -> str:
    return "a component" if count == 1 else "components"
