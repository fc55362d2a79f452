"""Reproduce the expected numbers, each as a check with its tolerance.

Only synthetic data are read, so nothing is charged: mechanisms run on arrays in memory, under keys from the operating
system, exactly as on a dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.blocks import ArrayBlocks
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.curator import Curator, InMemoryReservation
from dpca_tasks.queries.base import Relation
from flows.stages import Runner, directly, finish, in_flow, recorded_failures
from flows.synthetic import FEATURES, RECORDS, a9a_like

COMPONENTS, DELTA, RUNS, TOLERANCE = 10, 1e-3, 10, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mechanism at one epsilon, and the captured variance that is expected of it."""

    mechanism: str
    epsilon: float
    expected: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = "add_remove"

    @property
    def name(self) -> str:
        """Mechanism, what is not default, epsilon."""
        told = [f"{key}={value}" for key, value in self.settings.items()]
        told += [] if self.relation == "add_remove" else [self.relation]
        return " ".join([self.mechanism, *told, f"epsilon={self.epsilon}"])


def _pair(mechanism: str, low: float, high: float, *, relation: Relation = "add_remove", **settings: Any) -> list[Case]:
    return [
        Case(mechanism=mechanism, epsilon=epsilon, expected=expected, settings=settings, relation=relation)
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
    *_pair("laplace", 0.328, 0.787),
    *_pair("local_gaussian", 0.160, 0.510, relation="zero_out"),
)


def check_mechanisms(runs: int, mechanisms: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run the table of mechanisms; return one check a case.

    Parameters
    ----------
    runs : int
        Runs whose mean is compared.
    mechanisms : tuple of str
        Whose cases to run; all when empty.

    Returns
    -------
    list of dict
        ``expected`` and ``got`` are captured variances (1 is the best ten directions); a check holds when ``got`` is
        within ``tolerance`` of ``expected``, which is a quarter of the expected loss.
    """
    rows = a9a_like()
    source, second_moment = ArrayBlocks(rows), (rows.T @ rows).toarray()
    best = float(np.linalg.eigvalsh(second_moment)[-COMPONENTS:].sum())
    checks = []
    for case in CASES:
        if mechanisms and case.mechanism not in mechanisms:
            continue
        problem = Problem(n_features=FEATURES, clip_norm=1.0, relation=case.relation, records_at_most=RECORDS)
        mechanism = MECHANISMS[case.mechanism](n_components=COMPONENTS, **case.settings)
        plan = mechanism.plan(problem, PrivacyTarget(epsilon=case.epsilon, delta=DELTA, allow_large_delta=True))
        captured = []
        for _ in range(runs):
            found = mechanism.run(Curator(source, InMemoryReservation(event=plan.event)), plan).components
            captured.append(float(np.einsum("ij,jk,ik->", found, second_moment, found)) / best)
        checks.append(_check(case.name, case.expected, float(np.mean(captured))))
    return checks


def run_reproduction(*, runs: int = RUNS, mechanisms: tuple[str, ...] = (), direct: bool = False) -> dict[str, Any]:
    """Reproduce from this process: as a Prefect flow, or directly."""
    if direct:
        return _reproduce(directly, runs, mechanisms)
    with recorded_failures():
        report: dict[str, Any] = finish(reproduce_mechanisms(runs=runs, mechanisms=list(mechanisms), return_state=True))
        return report


@flow(name="reproduce-mechanisms", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_mechanisms(runs: int = RUNS, mechanisms: list[str] | None = None) -> dict[str, Any] | State[Any]:
    """Check the mechanisms' captured variances on a synthetic matrix against what is expected.

    Parameters
    ----------
    runs : int
        Runs whose mean is compared.
    mechanisms : list of str, optional
        Whose cases to run; all when left out.
    """
    return in_flow(lambda run: _reproduce(run, runs, tuple(mechanisms or ())))


def _reproduce(run: Runner, runs: int, mechanisms: tuple[str, ...]) -> dict[str, Any]:
    return {"checks": run(check_mechanisms, runs, mechanisms)}


def _check(name: str, expected: float, got: float) -> dict[str, Any]:
    tolerance = TOLERANCE * (1 - expected)
    return {
        "name": name,
        "expected": expected,
        "tolerance": tolerance,
        "got": got,
        "holds": abs(got - expected) <= tolerance,
    }
