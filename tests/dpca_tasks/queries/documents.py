"""Test documents with all kinds of edge cases, and their exact statistics as fractions."""

import itertools
from fractions import Fraction

import numpy as np

from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import full

LONGEST = 40
EXTREME: dict[str, list[float]] = {
    "no word": [0, 0, 0, 0, 0],
    "two words": [1, 0, 1, 0, 0],
    "three words": [1, 1, 0, 0, 1],
    "one word, three times": [3, 0, 0, 0, 0],
    "one word, many times": [0, LONGEST, 0, 0, 0],
    "one word, far too often": [0, 0, 0, 1e9, 0],
    "another word, many times": [0, 0, 0, 0, LONGEST],
    "the longest, of all words": [LONGEST - 10, 1, 2, 3, 4],
    "longer than that": [LONGEST, LONGEST, LONGEST, 1, 0],
}
"""Counts of five words."""
NO_DOCUMENT = (-1.0, 0.5, np.nan, np.inf, -np.inf, 2.0**41)
"""Invalid counts: a document with one of them adds nothing."""


def total(query, rows, **others):
    return exact_sum(ArrayBlocks(np.atleast_2d(np.asarray(rows, float)), **others), query)


def triples(counts):
    """Return how a document's ordered word triples divide among all triples, as exact fractions (D x D x D)."""
    counts = [Fraction(int(count)) for count in counts]
    length, found = sum(counts), np.full((len(counts),) * 3, Fraction(0))
    for i, j, k in itertools.product(range(len(counts)), repeat=3):
        found[i, j, k] = counts[i] * (counts[j] - (i == j)) * (counts[k] - (i == k) - (j == k))
    return found / (length * (length - 1) * (length - 2))


def pairs(counts):
    counts = np.array([Fraction(int(count)) for count in counts])
    length = counts.sum()
    return (np.outer(counts, counts) - np.diag(counts)) / (length * (length - 1))


def furthest(query, records):
    """Return the largest distance between two records' contributions to a sum, and the largest norm of one."""
    points = np.stack([full(query, total(query, record)) for record in records])
    moved = points[:, None] - points
    return np.sqrt(np.square(moved).sum(axis=tuple(range(2, moved.ndim)))).max(), max(map(np.linalg.norm, points))
