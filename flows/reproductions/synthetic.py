"""A matrix like a9a, made from a seed: what the expected numbers of the mechanisms are checked on.

Fourteen groups of columns, one of each group in every row, drawn by a latent class; rows have norm 1. The spectrum of
``X^T X / n`` is within about 8 % of the target: .308 .069 .051 .042 .022 .020 .017 .0166 .0161 .0147.
"""

import numpy as np
from scipy import sparse

GROUPS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
RECORDS = 30_000
FEATURES = sum(GROUPS)

_CLASSES, _COMMON, _SPREAD, _EVENNESS, _SEED = 4, 0.3, 1.4, 100.0, 596120333


def a9a_like() -> sparse.csr_array:
    """Return the matrix, of shape (30000, 123), with fourteen equal values a row."""
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
