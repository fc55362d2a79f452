"""Reproduce the expected numbers, each as a check with its tolerance.

Only synthetic data are read, so nothing is charged: mechanisms run on arrays in memory, under keys from the operating
system, exactly as on a dataset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.metrics import held_variance, squared_distance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.orchestration import form_fields
from flows.reproductions.checks import Check, Report, near, report, reported_by_flow
from flows.reproductions.synthetic import FEATURES, RECORDS, a9a_like

type Matrix = NDArray[np.float64]

COMPONENTS, DELTA, RUNS, TOLERANCE = 10, 1e-3, 10, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mechanism at one epsilon and delta, and what is expected of its k components.

    ``expected`` is the captured variance, or, of a `Distance`, the squared distance of the subspaces. Runs that differ
    much are taken ``repeats`` times as often. A case that ``fails`` is expected to be no better than random.
    """

    mechanism: str
    epsilon: float
    expected: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = "add_remove"
    components: int = COMPONENTS
    delta: float = DELTA
    repeats: int = 1
    fails: bool = False

    @property
    def tolerance(self) -> float:
        """A quarter of the expected loss."""
        return TOLERANCE * (1 - self.expected)

    @property
    def name(self) -> str:
        """Mechanism, what is not default, epsilon."""
        told = [f"{key}={value}" for key, value in self.settings.items()]
        told += [] if self.relation == "add_remove" else [self.relation]
        told += [] if self.components == COMPONENTS else [f"k={self.components}"]
        told += [] if self.delta == DELTA else [f"delta={self.delta:g}"]
        told += [f"epsilon={self.epsilon}"] + (["fails"] if self.fails else [])
        return " ".join([self.mechanism, *told])

    def measure(self, found: Matrix, best: Matrix, second_moment: Matrix) -> float:
        """Compare components with the best ones."""
        return held_variance(second_moment, found) / held_variance(second_moment, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance(Case):
    """A case of which ``k - ||V^T V'||_F^2`` is stated, where it is small to one digit and from few runs."""

    digit: float = 0.0

    @property
    def tolerance(self) -> float:
        """A quarter of what is expected, and a unit of its one digit."""
        return TOLERANCE * self.expected + self.digit

    def measure(self, found: Matrix, best: Matrix, second_moment: Matrix) -> float:
        """Compare components with the best ones."""
        return squared_distance(found, best)


def _fails(mechanism: str, epsilon: float, components: int, **settings: Any) -> Distance:
    """Return a case that is expected to fail: a subspace as far away as random ones are."""
    return Distance(
        mechanism=mechanism,
        epsilon=epsilon,
        expected=components * (1 - components / FEATURES),
        components=components,
        settings=settings,
        fails=True,
    )


def _pair(
    mechanism: str,
    low: float,
    high: float,
    *,
    relation: Relation = "add_remove",
    delta: float = DELTA,
    **settings: Any,
) -> list[Case]:
    return [
        Case(mechanism=mechanism, epsilon=epsilon, expected=expected, settings=settings, relation=relation, delta=delta)
        for epsilon, expected in ((0.1, low), (1.0, high))
    ]


CASES = (
    *_pair("analyze_gauss", 0.980, 0.9995),
    *_pair("analyze_gauss", 0.963, 0.999, relation="replace_one"),
    Case(mechanism="analyze_gauss", epsilon=0.1, expected=0.896, settings={"calibration": "paper"}),
    *_pair("mod_sulq", 0.964, 0.999),
    *_pair("mod_sulq", 0.154, 0.43, relation="replace_one", calibration="paper"),
    Case(mechanism="noisy_power", epsilon=0.1, expected=0.899, settings={"iterations": 3, "averaging": "last"}),
    Case(mechanism="noisy_power", epsilon=1.0, expected=0.993, settings={"iterations": 12, "averaging": "last"}),
    Case(
        mechanism="dp_spca",
        epsilon=0.1,
        expected=0.932,
        settings={"rate": 1.0, "steps": 10, "integrated_time": 400.0},
    ),
    Case(
        mechanism="dp_spca",
        epsilon=1.0,
        expected=0.998,
        settings={"rate": 1.0, "steps": 100, "integrated_time": 6000.0},
    ),
    Case(mechanism="dp_spca", epsilon=0.1, expected=0.931, settings={"integrated_time": 300.0}),
    Case(mechanism="dp_spca", epsilon=1.0, expected=0.997, settings={"integrated_time": 1500.0}),
    *_pair("dp_spca", 0.715, 0.736, form="one_row", integrated_time=100.0),
    Case(mechanism="dp_vrpca", epsilon=0.1, expected=0.890, settings={"integrated_time": 150.0}),
    Case(mechanism="dp_vrpca", epsilon=1.0, expected=0.992, settings={"integrated_time": 500.0}),
    *_pair("wishart", 0.793, 0.992),
    Case(mechanism="exponential", epsilon=0.1, expected=0.939, components=1, delta=0.0),
    Case(mechanism="exponential", epsilon=0.1, expected=0.580, components=4, delta=0.0),
    *_pair("exponential", 0.379, 0.774, delta=0.0),
    *_pair("exponential", 0.749, 0.969, delta=0.0, sampler="gibbs", allow_uncertified=True),
    Distance(mechanism="smooth_sensitivity", epsilon=0.1, expected=0.0002, components=1, digit=1e-4),
    _fails("smooth_sensitivity", 0.1, 4),
    _fails("smooth_sensitivity", 0.1, 10),
    _fails("smooth_sensitivity", 1.0, 10),
    _fails("smooth_sensitivity", 0.1, 1, calibration="paper"),
    _fails("smooth_sensitivity", 0.1, 1, noise="spherical_t"),
    Distance(
        mechanism="smooth_sensitivity",
        epsilon=1.0,
        expected=0.0003,
        components=1,
        digit=1e-4,
        settings={"noise": "spherical_t"},
    ),
    Distance(mechanism="propose_test_release", epsilon=0.1, expected=0.0004, components=1, digit=1e-4),
    Distance(mechanism="propose_test_release", epsilon=0.1, expected=0.79, components=4, repeats=10),
    Distance(mechanism="propose_test_release", epsilon=0.3, expected=0.045, components=4),
    _fails("propose_test_release", 0.1, 10),
    _fails("propose_test_release", 1.0, 10),
    *_pair("laplace", 0.328, 0.787),
    *_pair("local_gaussian", 0.160, 0.510, relation="zero_out"),
)


def check_mechanisms(*, runs: int = RUNS, mechanisms: Sequence[str] | None = None) -> Report:
    """Run the table of mechanisms; report one check a case.

    Parameters
    ----------
    runs : int
        Runs whose mean is compared.
    mechanisms : sequence of str, optional
        Whose cases to run; all by default.

    Returns
    -------
    Report
        ``expected`` and ``got`` are captured variances (1 is the best k directions), or distances; a check holds when
        ``got`` is within ``tolerance`` of ``expected``, a quarter of the expected loss.
    """
    rows = a9a_like()
    source, second_moment = ArrayBlocks(rows), (rows.T @ rows).toarray()
    directions = np.linalg.eigh(second_moment)[1].T[::-1]
    cases = [case for case in CASES if not mechanisms or case.mechanism in mechanisms]
    return report(_check(case, runs, source, directions, second_moment) for case in cases)


@flow(name="reproduce-mechanisms", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_mechanisms(
    runs: form_fields.Runs = RUNS, mechanisms: form_fields.Mechanisms = None
) -> Report | State[Any]:
    """Check the mechanisms' captured variances on a synthetic matrix against what is expected."""
    return reported_by_flow(check_mechanisms, runs=runs, mechanisms=mechanisms)


def _check(case: Case, runs: int, source: ArrayBlocks, directions: Matrix, second_moment: Matrix) -> Check:
    problem = Problem(n_features=FEATURES, clip_norm=1.0, relation=case.relation, records_at_most=RECORDS)
    mechanism = MECHANISMS[case.mechanism](n_components=case.components, **case.settings)
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=case.epsilon, delta=case.delta, allow_large_delta=True))
    got = []
    for _ in range(runs * case.repeats):
        found = mechanism.run(
            Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation)), plan
        ).components
        got.append(case.measure(found, directions[: case.components], second_moment))
    return near(case.name, case.expected, case.tolerance, got=float(np.mean(got)))
