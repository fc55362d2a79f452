"""Check the captured variance of every mechanism on a matrix like a9a, against expected numbers with tolerances.

The matrix is generated from a seed. It has fourteen groups of columns. In every row, one column of each group is
nonzero; the choice depends on a random class of the row. Rows have norm 1. The leading eigenvalues of ``X^T X / n`` are
within about 8 % of .308 .069 .051 .042 .022 .020 .017 .0166 .0161 .0147.

Mechanisms run on arrays in memory, with keys from the operating system. Nothing is charged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

from dpca_tasks.accounting.events import Relation
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.metrics import held_variance, squared_distance
from dpca_tasks.records.blocks import ArrayBlocks
from papers.lib.experiments import Check, Matrix, Report, Runs, near, report, run_mechanism
from papers.lib.public_data import second_moment

GROUPS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
RECORDS = 30_000
FEATURES = sum(GROUPS)
_CLASSES, _COMMON, _SPREAD, _EVENNESS, _SEED = 4, 0.3, 1.4, 100.0, 596120333
COMPONENTS, DELTA, RUNS, TOLERANCE = 10, 1e-3, 10, 0.25


def a9a_like() -> sparse.csr_array:
    """Return a matrix like a9a, of shape (30000, 123), with fourteen equal values per row and norm 1."""
    rng = np.random.default_rng(_SEED)
    classes = rng.dirichlet(np.full(_CLASSES, _EVENNESS))
    tables = []
    for width in GROUPS:
        odds = np.exp(_COMMON * rng.standard_normal(width) + _SPREAD * rng.standard_normal((_CLASSES, width)))
        tables.append(np.cumsum(odds, axis=1) / odds.sum(axis=1, keepdims=True))
    kinds = rng.choice(_CLASSES, size=RECORDS, p=classes)
    columns, first = np.empty((RECORDS, len(GROUPS)), np.int64), 0
    for at, table in enumerate(tables):
        places = (rng.random((RECORDS, 1)) > table[kinds]).sum(axis=1)
        columns[:, at] = first + np.minimum(places, GROUPS[at] - 1)
        first += GROUPS[at]
    values = np.full(columns.size, 1.0 / np.sqrt(len(GROUPS)))
    row_ptr = len(GROUPS) * np.arange(RECORDS + 1)
    return sparse.csr_array((values, columns.ravel(), row_ptr), shape=(RECORDS, FEATURES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mechanism at one epsilon and delta, with the expected accuracy of its components.

    ``expected`` is the captured variance. If ``digit`` is given, it is the squared distance from the best subspace
    instead, with ``digit`` as the unit of its last digit. A case with widely varying results runs ``repeats`` times as
    often. If ``fails``, the components are expected to be no better than random.
    """

    mechanism: str
    epsilon: float
    expected: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    relation: Relation = "add_remove"
    components: int = COMPONENTS
    delta: float = DELTA
    digit: float | None = None
    repeats: int = 1
    fails: bool = False

    @property
    def tolerance(self) -> float:
        """A quarter of the expected loss of captured variance, or a quarter of the expected distance plus ``digit``."""
        return TOLERANCE * (1 - self.expected) if self.digit is None else TOLERANCE * self.expected + self.digit

    @property
    def name(self) -> str:
        """The mechanism, its settings that are not defaults, and epsilon as text."""
        shown = [f"{key}={value}" for key, value in self.settings.items()]
        shown += [] if self.relation == "add_remove" else [self.relation]
        shown += [] if self.components == COMPONENTS else [f"k={self.components}"]
        shown += [] if self.delta == DELTA else [f"delta={self.delta:g}"]
        shown += [f"epsilon={self.epsilon}"] + (["fails"] if self.fails else [])
        return " ".join([self.mechanism, *shown])

    def measure(self, found: Matrix, best: Matrix, second_moment: Matrix) -> float:
        """Return the captured variance of components, or their squared distance from the best components."""
        if self.digit is not None:
            return squared_distance(found, best)
        return held_variance(second_moment, found) / held_variance(second_moment, best)


def _fails(mechanism: str, epsilon: float, components: int, **settings: Any) -> Case:
    """Return a case in which the components are expected to be no better than random directions."""
    return Case(
        mechanism=mechanism,
        epsilon=epsilon,
        expected=components * (1 - components / FEATURES),
        components=components,
        settings=settings,
        digit=0.0,
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
    *_pair("analyze_gauss", 0.980, 0.9995, rounds=1),
    *_pair("analyze_gauss", 0.963, 0.999, relation="replace_one", rounds=1),
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
    Case(mechanism="smooth_sensitivity", epsilon=0.1, expected=0.0002, components=1, digit=1e-4),
    _fails("smooth_sensitivity", 0.1, 4),
    _fails("smooth_sensitivity", 0.1, 10),
    _fails("smooth_sensitivity", 1.0, 10),
    _fails("smooth_sensitivity", 0.1, 1, calibration="paper"),
    _fails("smooth_sensitivity", 0.1, 1, noise="spherical_t"),
    Case(
        mechanism="smooth_sensitivity",
        epsilon=1.0,
        expected=0.0003,
        components=1,
        digit=1e-4,
        settings={"noise": "spherical_t"},
    ),
    Case(mechanism="propose_test_release", epsilon=0.1, expected=0.0004, components=1, digit=1e-4),
    Case(mechanism="propose_test_release", epsilon=0.1, expected=0.79, components=4, repeats=10, digit=0.0),
    Case(mechanism="propose_test_release", epsilon=0.3, expected=0.045, components=4, digit=0.0),
    _fails("propose_test_release", 0.1, 10),
    _fails("propose_test_release", 1.0, 10),
    *_pair("laplace", 0.328, 0.787),
    *_pair("local_gaussian", 0.160, 0.510, relation="zero_out"),
)


def reproduce(
    *,
    runs: Runs = RUNS,
    mechanisms: Annotated[
        list[str] | None, typer.Option("--mechanism", help="Only the cases of this mechanism; all by default.")
    ] = None,
) -> Report:
    """Check the captured variance of every mechanism on an a9a-like matrix; no data are read, no budget is spent.

    Returns
    -------
    Report
        ``expected`` and ``got`` are captured variances (1 is the best k directions), or distances. A check holds if
        ``got`` is within ``tolerance`` of ``expected``, a quarter of the expected loss.
    """
    rows = a9a_like()
    source, moment = ArrayBlocks(rows), second_moment(rows)
    directions = np.linalg.eigh(moment)[1].T[::-1]
    cases = [case for case in CASES if not mechanisms or case.mechanism in mechanisms]
    return report(_check(case, runs, source, directions, moment) for case in cases)


def _check(case: Case, runs: int, source: ArrayBlocks, directions: Matrix, second_moment: Matrix) -> Check:
    problem = Problem(n_features=FEATURES, clip_norm=1.0, relation=case.relation, records_at_most=RECORDS)
    mechanism = MECHANISMS[case.mechanism](n_components=case.components, **case.settings)
    target = PrivacyTarget(epsilon=case.epsilon, delta=case.delta, allow_large_delta=True)
    got = [
        case.measure(
            run_mechanism(mechanism, problem, target, source).components, directions[: case.components], second_moment
        )
        for _ in range(runs * case.repeats)
    ]
    return near(case.name, case.expected, case.tolerance, got=float(np.mean(got)))
