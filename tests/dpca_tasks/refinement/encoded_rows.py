"""Rows of a declared schema: four categorical columns that every row fills, one that may be empty, and two numbers."""

import itertools

import numpy as np

from dpca_tasks.refinement.schema_constraints import Constraints

N_ROWS, SIZES = 3_000, (3, 4, 5, 6, 4)
GROUPS = tuple(itertools.pairwise(itertools.accumulate(SIZES, initial=0)))
SPACE = Constraints(n_features=24, groups=GROUPS, filled=(True, True, True, True, False))


def encoded():
    """Return rows whose categories depend on two hidden factors, clipped to norm 2."""
    rng = np.random.default_rng(5)
    rows, hidden = np.zeros((N_ROWS, 24)), rng.standard_normal((N_ROWS, 2))
    for full, (start, stop) in zip(SPACE.filled, GROUPS, strict=True):
        scores = hidden @ rng.standard_normal((2, stop - start)) * 1.5 + rng.gumbel(size=(N_ROWS, stop - start))
        rows[np.arange(N_ROWS), start + scores.argmax(axis=1)] = 1.0 if full else rng.random(N_ROWS) < 0.6
    rows[:, 22:] = rng.standard_normal((N_ROWS, 2))
    return rows / np.maximum(np.linalg.norm(rows, axis=1) / 2.0, 1.0)[:, None]


ROWS = encoded()
S = ROWS.T @ ROWS
