"""Table of all mechanisms with their expected properties, over which contract tests and audits run."""

from dataclasses import dataclass, replace
from typing import Any

from dpca_tasks.accounting.events import Relation
from dpca_tasks.mechanisms.base import Mechanism, PrivacyTarget
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.mechanisms.subspace.dp_vrpca import DpVrpca
from dpca_tasks.mechanisms.subspace.dps_pca import DpsPca
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.mechanisms.subspace.laplace import LaplaceMoment
from dpca_tasks.mechanisms.subspace.local_gaussian import LocalGaussian
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.subspace.noisy_power import NoisyPower
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.mechanisms.subspace.wishart import Wishart

RELATIONS: tuple[Relation, ...] = ("add_remove", "zero_out", "replace_one")

A9A_CLIP_NORM = 14.0**0.5
A9A_COMPONENTS = 10
COMMON_TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
PAPER_TARGET = PrivacyTarget(epsilon=0.1, delta=1e-3, allow_large_delta=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A mechanism and its expected properties.

    Fields for the audit

    - ``audited`` runs on its worst known neighbors with ``n_features`` columns, ``trials`` times on each dataset, at a
      claim of epsilon 1.
    - The audit's bound in each of ``relations`` must reach ``reach``. The mechanism refuses other relations.
    - A ``sampled`` claim rests on a loss distribution, not on mu^2 alone, and the attack does not know the sampling
      coins.
    - ``noised_by_block`` marks mechanisms with local noise, which depends on the division into blocks.

    Some bounds stay below the claim because the attack cannot attain the worst case:

    - The sensitivity stated for replace_one is not attained where it comes from the triangle inequality (laplace: 2 of
      3).
    - The worst loss of Wishart noise occurs only in its tails.
    - In the plane, no more than about half the range of a drawn direction's loss is attained.
    - Replacing a record of a sampled step is bounded as removing and adding it, each at half of epsilon; the attack
      reaches nothing.

    Fields for accuracy and cost

    - ``usual`` runs on the dataset a9a.
    - ``captured`` has the least mean of captured variance in three runs, at `COMMON_TARGET` and at `PAPER_TARGET`.
    - ``refined`` has the same for the refined components, where refinement is the default and improves the release.
    - A ``pure`` mechanism accepts delta 0; ``uses_delta`` is set if it also uses a positive delta.
    - The mechanism ``spends`` at least this fraction of its target.
    - ``spectrum`` is false for mechanisms that release no spectrum.
    """

    audited: Mechanism[Any]
    n_features: int = 2
    trials: int = 2000
    reach: tuple[float, ...]
    usual: Mechanism[Any]
    captured: tuple[float, float]
    refined: tuple[float, float] | None = None
    pure: bool = False
    uses_delta: bool = False
    spends: float = 1.0
    spectrum: bool = True
    relations: tuple[Relation, ...] = RELATIONS
    sampled: bool = False
    noised_by_block: bool = False

    @property
    def relation(self) -> Relation:
        """Default relation, for tests that do not depend on the relation."""
        return self.relations[0]


TABLE = {
    row.audited.name: row
    for row in (
        Row(
            audited=AnalyzeGauss(n_components=1),
            trials=4000,
            reach=(0.5, 0.5, 0.5),
            usual=AnalyzeGauss(n_components=A9A_COMPONENTS, rounds=1),
            captured=(0.9988, 0.987),
            refined=(0.9989, 0.9915),
        ),
        Row(
            audited=DpSpca(n_components=1, steps=2, rate=0.5),
            reach=(0.1, 0.1, 0.0),
            usual=DpSpca(n_components=A9A_COMPONENTS, steps=20, integrated_time=300.0),
            captured=(0.95, 0.92),
            sampled=True,
        ),
        Row(
            audited=DpVrpca(n_components=1, epochs=1, inner_steps=2, rate=0.5),
            trials=1000,
            reach=(0.07, 0.07, 0.0),
            usual=DpVrpca(n_components=A9A_COMPONENTS, epochs=2, inner_steps=8),
            captured=(0.95, 0.88),
            sampled=True,
        ),
        Row(
            audited=DpsPca(n_components=1, iterations=2),
            reach=(0.1, 0.1, 0.1),
            usual=DpsPca(n_components=A9A_COMPONENTS, rows_kept=60),
            captured=(0.95, 0.8),
            spectrum=False,
        ),
        Row(
            audited=Exponential(n_components=1),
            trials=3000,
            reach=(0.15, 0.15, 0.15),
            usual=Exponential(n_components=A9A_COMPONENTS),
            captured=(0.83, 0.63),
            pure=True,
            uses_delta=True,
            spectrum=False,
        ),
        Row(
            audited=LocalGaussian(n_components=1),
            # local reports: the attack sees only the sum of two reports, so it cannot reach the whole claim
            trials=6000,
            reach=(0.01, 0.1),
            usual=LocalGaussian(n_components=A9A_COMPONENTS),
            captured=(0.43, 0.08),
            relations=("zero_out", "replace_one"),
            noised_by_block=True,
        ),
        Row(
            audited=LaplaceMoment(n_components=1),
            reach=(0.3, 0.3, 0.2),
            usual=LaplaceMoment(n_components=A9A_COMPONENTS),
            captured=(0.79, 0.38),
            pure=True,
        ),
        Row(
            audited=ModSulq(n_components=1),
            reach=(0.3, 0.3, 0.3),
            usual=ModSulq(n_components=A9A_COMPONENTS),
            captured=(0.997, 0.975),
            refined=(0.9983, 0.9853),
        ),
        Row(
            audited=NoisyPower(n_components=1, iterations=2),
            reach=(0.3, 0.3, 0.3),
            usual=NoisyPower(n_components=A9A_COMPONENTS),
            captured=(0.991, 0.92),
        ),
        Row(
            audited=ProposeTestRelease(n_components=1),
            reach=(0.03, 0.03, 0.03),
            usual=ProposeTestRelease(n_components=1),
            captured=(0.9999, 0.9998),
            spectrum=False,
        ),
        Row(
            audited=SmoothSensitivity(n_components=1),
            trials=1000,
            reach=(0.15, 0.15, 0.15),
            usual=SmoothSensitivity(n_components=1),
            captured=(0.9999, 0.9998),
            spectrum=False,
        ),
        Row(
            audited=Wishart(n_components=1),
            reach=(0.2, 0.2, 0.1),
            usual=Wishart(n_components=A9A_COMPONENTS),
            captured=(0.994, 0.789),
            pure=True,
        ),
    )
}

FORMS = {
    "analyze_gauss/operator": replace(
        TABLE["analyze_gauss"],
        audited=AnalyzeGauss(n_components=1, form="operator"),
        usual=AnalyzeGauss(n_components=A9A_COMPONENTS, form="operator"),
        refined=None,
    ),
    "analyze_gauss/two rounds": replace(
        TABLE["analyze_gauss"],
        audited=AnalyzeGauss(n_components=1, rounds=2),
        usual=AnalyzeGauss(n_components=A9A_COMPONENTS, rounds=2),
    ),
}
"""Other forms of registered mechanisms, which must meet the same contracts."""
