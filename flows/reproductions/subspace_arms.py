"""The arms of a comparison of subspaces: a mechanism in the calibration that the product runs, or as printed.

An arm of the product passes the curator, with a reservation in memory: the rows are public, so nothing is charged. Its
key comes from a seed, so that every number can be made again; on private rows a key comes from the operating system.

>>> import numpy as np
>>> from scipy import sparse
>>> rows = sparse.csr_array(np.eye(6)[np.arange(600) % 4])
>>> found = Arm(mechanism="analyze_gauss").run(Rows.of(rows), n_components=2, epsilon=1.0, delta=1e-4, seed=(1,))
>>> found.shape
(2, 6)
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.refined_release import refine_release
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.printed_algorithms import FORMULA_SETTINGS, PRINTED, true_epsilon

type Matrix = NDArray[np.float64]
type Calibration = Literal["tight", "paper", "printed"]

WIDE, NARROW, SMALL = 5_000, 1_000, 500
"""Features beyond which only arms without a matrix run, up to which all run, up to which several draws are cheap."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Public rows, and the same as the curator's source."""

    matrix: sparse.csr_array
    source: ArrayBlocks

    @classmethod
    def of(cls, matrix: sparse.csr_array) -> Self:
        """Take rows of norm at most 1."""
        return cls(matrix=matrix, source=ArrayBlocks(matrix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A mechanism and its noise.

    Attributes
    ----------
    mechanism : str
    calibration : {"tight", "paper", "printed"}
        ``tight``: the least noise for the guarantee. ``paper``: the published noise, where the product runs it.
        ``printed``: published noise that the product refuses, by `flows.reproductions.printed_algorithms`.
    settings : Mapping
    relation : Relation
    refined : bool
        Whether the release is refined (``auto``).
    ranges : {"all", "medium", "wide"}
        Up to which number of features it runs: `NARROW`, `WIDE`, or any.
    dear : bool
        Whether a run takes several seconds on tens of thousands of records.
    """

    mechanism: str
    calibration: Calibration = "tight"
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = "add_remove"
    refined: bool = False
    ranges: Literal["narrow", "medium", "wide"] = "narrow"
    dear: bool = False

    @property
    def name(self) -> str:
        """Mechanism, calibration, and whether it is refined."""
        return f"{self.mechanism} {self.calibration}{' refined' if self.refined else ''}"

    @property
    def bound(self) -> str:
        """Whether the true epsilon is at most or at least what is stated."""
        return (
            FORMULAS[self.mechanism].bound.replace("between", "at most") if self.calibration == "printed" else "at most"
        )

    def fits(self, n_features: int) -> bool:
        """Tell whether the arm runs on so many features."""
        limit = {"narrow": NARROW, "medium": WIDE, "wide": math.inf}[self.ranges]
        return n_features <= limit

    def run(self, rows: Rows, *, n_components: int, epsilon: float, delta: float, seed: tuple[int, ...]) -> Matrix:
        """Return components as rows.

        Raises
        ------
        Refused
            If the mechanism does not run at this target.
        """
        if self.calibration == "printed":
            asked = self._asked(rows, n_components=n_components, epsilon=epsilon, delta=delta)
            return PRINTED[self.mechanism](rows.matrix, asked=asked, rng=np.random.default_rng(seed))
        mechanism, plan = self._planned(rows, n_components=n_components, epsilon=epsilon, delta=delta)
        key = hashlib.sha256(repr((self.mechanism, self.calibration, epsilon, delta, *seed)).encode()).digest()
        reservation = InMemoryReservation(event=plan.event, relation=self.relation, key=key)
        found = mechanism.run(Curator(rows.source, reservation), plan)
        if self.refined:
            found = refine_release(found, n_components=n_components, method="auto").subspace
        return np.asarray(found.components)

    def true_epsilon(self, rows: Rows, *, n_components: int, epsilon: float, delta: float) -> float:
        """Return an upper bound of what the noise gives at delta; infinite where no epsilon does.

        Raises
        ------
        Refused
            If the mechanism does not run at this target.
        """
        if self.calibration == "printed":
            asked = self._asked(rows, n_components=n_components, epsilon=epsilon, delta=delta)
            return true_epsilon(self.mechanism, FORMULA_SETTINGS[self.mechanism](asked))
        _, plan = self._planned(rows, n_components=n_components, epsilon=epsilon, delta=delta)
        return epsilon if plan.real_epsilon is None else plan.real_epsilon

    def _asked(self, rows: Rows, *, n_components: int, epsilon: float, delta: float) -> Settings:
        n, d = rows.matrix.shape
        return Settings(epsilon=epsilon, delta=delta, n_records=n, n_features=d, n_components=n_components)

    def _planned(self, rows: Rows, *, n_components: int, epsilon: float, delta: float) -> tuple[Any, Plan]:
        n, d = rows.matrix.shape
        kind = MECHANISMS[self.mechanism]
        settings = dict(self.settings)
        if "calibration" in {each.name for each in fields(kind)}:
            settings["calibration"] = self.calibration
        elif self.calibration == "paper":
            raise Refused(f"{self.mechanism} has no calibration=paper; use calibration=tight.")
        problem = Problem(n_features=d, clip_norm=1.0, relation=self.relation, records_at_most=n)
        mechanism = kind(n_components=n_components, **settings)
        target = PrivacyTarget(epsilon=epsilon, delta=delta, allow_large_delta=True)
        return mechanism, mechanism.plan(problem, target)


ANALYZE_GAUSS = Arm(mechanism="analyze_gauss", ranges="wide")
REFINED = Arm(mechanism="analyze_gauss", refined=True, ranges="medium")
GAUSSIAN = Arm(mechanism="analyze_gauss", calibration="paper", ranges="wide")
MOD_SULQ = Arm(mechanism="mod_sulq", calibration="paper", relation="replace_one", ranges="medium")
DP_SPCA = Arm(mechanism="dp_spca", settings={"integrated_time": 300.0})
DP_VRPCA = Arm(mechanism="dp_vrpca")
PRINTED_SPCA = Arm(mechanism="dp_spca", calibration="printed", dear=True)
PRINTED_VRPCA = Arm(mechanism="dp_vrpca", calibration="printed", dear=True)

COMPARED = (ANALYZE_GAUSS, REFINED, GAUSSIAN, MOD_SULQ)
"""The arms of which losses are stated."""

_STATED = (
    *COMPARED,
    Arm(mechanism="mod_sulq", ranges="medium"),
    Arm(mechanism="noisy_power", ranges="wide"),
    Arm(mechanism="noisy_power", calibration="printed", ranges="wide"),
    DP_SPCA,
    Arm(
        mechanism="dp_spca",
        calibration="paper",
        settings={"form": "one_row", "integrated_time": 100.0},
        dear=True,
    ),
    PRINTED_SPCA,
    DP_VRPCA,
    PRINTED_VRPCA,
    Arm(mechanism="wishart"),
    Arm(mechanism="wishart", calibration="printed"),
    Arm(mechanism="laplace"),
    Arm(mechanism="exponential"),
    Arm(mechanism="local_gaussian", relation="zero_out"),
    Arm(mechanism="smooth_sensitivity", dear=True),
    Arm(mechanism="propose_test_release", dear=True),
)

ARMS = (
    *_STATED,
    *(Arm(mechanism=name) for name in MECHANISMS if name not in {arm.mechanism for arm in _STATED}),
)
"""Every mechanism: tight, as published where the product runs that, and as printed where it refuses."""

BOUNDS = {arm.name: arm.bound for arm in ARMS}
"""Whether true epsilons of an arm are upper or lower bounds."""
