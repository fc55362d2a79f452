"""Post-processing of a release in rounds: refinement of its components, and assessment of their quality.

>>> known = {"noised_records": 1e5, "energy": [None, 2.1e4], "clip_norm": [1.0, 0.5], "kept": [1.0, 0.934]}
>>> rounds_in_words({"shares": [0.2, 0.8], "directions": [0, 7], **known})
'2 rounds with 20 % and 80 % of the budget; the map of round 2 shrinks 7 directions and leaves a mean squared norm \
of 0.21, of which clipping at 0.5 keeps 93 %'
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.noise_level import above_edge
from dpca_tasks.refinement.leading_pairs import Request
from dpca_tasks.refinement.refined_release import AUTO, RefinedRelease
from dpca_tasks.refinement.rounds import Answer, Estimate, components
from dpca_tasks.refinement.rounds_assessment import assessed, edge_of, estimated
from dpca_tasks.refinement.schema_constraints import Constraints
from dpca_tasks.threads import one_thread


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """The answers of a release in rounds.

    Parameters
    ----------
    answers : tuple of `dpca_tasks.refinement.rounds.Answer`
        The answers, in squared clip norms.
    unit : float
        The squared clip norm in data units.
    centred : bool
        Whether the components are computed around the mean.
    noise_edge : float, data units squared, optional
        An upper bound on eigenvalues of noise alone that holds in 99 of 100 cases.
    constraints : Constraints, optional
        The constraints of a schema that the estimate satisfies.
    """

    answers: tuple[Answer, ...]
    unit: float
    centred: bool
    noise_edge: float | None = None
    constraints: Constraints | None = None

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate from all rounds."""
        with one_thread():
            return estimated(self.answers, centred=self.centred, constraints=self.constraints)

    def refined(self, released: Subspace, *, n_components: int | str, method: Request) -> RefinedRelease:
        """Refine the release of these rounds; see `refine_rounds`."""
        return refine_rounds(released, n_components=n_components, method=method)


def refine_rounds(released: Subspace, *, n_components: int | str, method: Request = "none") -> RefinedRelease:
    """Refine the components of a release in rounds, and assess them.

    Parameters
    ----------
    released : Subspace
        The result of a mechanism, with ``rounds``.
    n_components : int or "auto"
        The number k of components. ``auto``: the number of components above the noise, at least one.
    method : {"none", "eb", "spikes", "all", "auto"}
        As for `dpca_tasks.refinement.leading_pairs.refine`. `dpca_tasks.refinement.rounds.components` applies it.
    """
    rounds: Rounds = released.rounds
    estimate = rounds.estimate
    count = _above(estimate, rounds.constraints) if n_components == AUTO else int(n_components)
    found = components(estimate, n_components=count, method=method)
    shown = assessed(rounds.answers, found, centred=rounds.centred, unit=rounds.unit, constraints=rounds.constraints)
    refined = dataclasses.replace(
        released, components=found.components, eigenvalues=found.values * rounds.unit, further=None
    )
    facts = refined.outcome or {}
    refined = dataclasses.replace(refined, outcome={**facts, "in_rounds": rounds_in_words(facts["rounds"])})
    return RefinedRelease(subspace=refined, refined_by=found.refined_by, assessment=shown, noise_edge=rounds.noise_edge)


def _above(estimate: Estimate, constraints: Constraints | None) -> int:
    """Return the number of components above the noise, at least 1 and fewer than there are columns."""
    order = len(estimate.matrix)
    with one_thread():
        values = np.linalg.eigvalsh(estimate.map.around(estimate.matrix))
    above = above_edge(values, edge=edge_of(estimate, constraints))
    return min(max(above, 1), order - 1)


def rounds_in_words(facts: Mapping[str, Any]) -> str:
    """Summarize the rounds of a release in one sentence, from ``rounds`` in the outcome of the release."""
    *others, last = (f"{100 * share:.0f} %" for share in facts["shares"])
    if not others:
        return _warm(facts)
    return "; ".join([f"{len(others) + 1} rounds with {', '.join(others)} and {last} of the budget", *_later(facts)])


def _warm(facts: Mapping[str, Any]) -> str:
    """Describe the only round of a release with a warm start."""
    (width,), (norm,) = facts["directions"], facts["clip_norm"]
    if not width:
        return f"1 round without a map, because no direction of {facts['like']} is above its noise"
    shrinks = f"1 round, whose map from {facts['like']} shrinks {width} directions"
    return f"{shrinks}; mapped records are clipped at {norm:.2g}"


def _later(facts: Mapping[str, Any]) -> list[str]:
    """Describe the map and the clipping of each round after the first."""
    text = []
    each = zip(facts["directions"], facts["energy"], facts["clip_norm"], facts["kept"], strict=True)
    for at, (directions, energy, norm, kept) in enumerate(each, start=1):
        if at == 1:
            continue
        if energy is None:
            text.append(f"round {at} has no map")
            continue
        shrunk = (
            f"the map of round {at} shrinks {directions} directions and leaves"
            if directions
            else (f"round {at} has no map, and records around the mean have")
        )
        left = f"{energy / facts['noised_records']:.2g}"
        text.append(f"{shrunk} a mean squared norm of {left}, of which clipping at {norm:.2g} keeps {100 * kept:.0f} %")
    return text
