"""Measure how much more variance a release captures if its schema is declared, on a9a with 14 categorical columns.

Keys are derived from seeds, so every number is reproducible. The data are public, so nothing is charged.
"""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.metrics import captured_variance
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.constrained_release import constrained_release
from dpca_tasks.refinement.refined_release import refine_release
from dpca_tasks.refinement.schema_constraints import Constraints
from papers.lib.experiments import Check, Report, at_least, near, report, run_mechanism
from papers.lib.public_data import a9a_rows
from papers.rounds import moment_around

DELTA, RUNS, TOLERANCE = 1e-6, 5, 0.008
"""The tolerance is three standard deviations of a mean of five draws, as for releases in rounds at epsilon .1."""
WIDTHS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""The numbers of features of the columns of a9a, in order."""
MAY_BE_MISSING = (1, 6, 13)
"""The columns with missing values: workclass, occupation and native-country."""
_SEED = 51


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A setting, with the captured variance that the derivation of the method states for a declared schema, if any."""

    n_components: int
    epsilon: float
    rounds: int = 1
    center: Center = "none"
    expected: float | None = None
    least: float | None = None

    @property
    def name(self) -> str:
        """The number of components, epsilon, rounds and centering as text."""
        words = f"k={self.n_components} epsilon={self.epsilon:g} rounds={self.rounds}"
        return words + " centred" * (self.center == "private")


CELLS = (
    Cell(n_components=10, epsilon=0.1, expected=0.983),
    Cell(n_components=30, epsilon=0.1, expected=0.965),
    Cell(n_components=30, epsilon=0.3, expected=0.993),
    Cell(n_components=30, epsilon=0.1, rounds=3, least=0.978),
    Cell(n_components=10, epsilon=0.1, center="private"),
    Cell(n_components=30, epsilon=0.1, center="private"),
    Cell(n_components=30, epsilon=0.1, rounds=3, center="private"),
)
"""The expected numbers come from the derivation of the method, where each is a mean of four draws."""


def reproduce() -> Report:
    """Check the captured variance of a9a with a declared schema, and its gain over a release without one.

    The data are public and keys are derived from seeds, so no budget is spent.

    Returns
    -------
    Report
        Each check compares a mean of five draws. ``tolerance`` is three standard deviations of this mean.
    """
    return report(_checks())


def declared(rows: sparse.csr_array) -> Constraints:
    """Return the constraints of the schema of a9a, after a check that every row satisfies them."""
    ends = tuple(itertools.pairwise(itertools.accumulate(WIDTHS, initial=0)))
    filled = tuple(column not in MAY_BE_MISSING for column in range(len(WIDTHS)))
    counts = np.array([(rows[:, start:stop] != 0).sum(axis=1) for start, stop in ends])
    assert counts.max() == 1
    assert counts[list(filled)].min() == 1
    return Constraints(n_features=rows.shape[1], groups=ends, filled=filled)


def _checks() -> Iterator[Check]:
    rows = a9a_rows()
    source, constraints = ArrayBlocks(rows), declared(rows)
    for cell in CELLS:
        moment = moment_around(rows, cell.center)
        values = np.linalg.eigvalsh(moment)[::-1]
        problem = Problem(n_features=rows.shape[1], clip_norm=1.0, records_at_most=rows.shape[0], center=cell.center)
        found = []
        for draw in range(RUNS):
            key = hashlib.sha256(repr((_SEED, cell.name, draw)).encode()).digest()
            mechanism = AnalyzeGauss(n_components=cell.n_components, rounds=cell.rounds)
            released = run_mechanism(
                mechanism, problem, PrivacyTarget(epsilon=cell.epsilon, delta=DELTA), source, key=key
            )
            refined = (
                refine_release(each, n_components=cell.n_components, method="auto").subspace
                for each in (released, constrained_release(released, constraints))
            )
            found.append([captured_variance(moment, each.components, values=values) for each in refined])
        plain, better = (float(mean) for mean in np.mean(found, axis=0))
        if cell.expected is not None:
            yield near(f"{cell.name}, with schema", cell.expected, TOLERANCE, got=better)
        if cell.least is not None:
            yield at_least(f"{cell.name}, with schema", cell.least, got=better)
        yield at_least(f"{cell.name}, with schema minus without", 0.0, got=better - plain)
