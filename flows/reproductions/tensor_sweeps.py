"""The settings along which the paper of capeAGN plots its errors, each run with every arm: the rows of a table."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpca_tasks.metrics import matched_errors, matched_weights, nearest_error
from flows.reproductions.tensor_arms import (
    ARMS,
    CAPE,
    NON_PRIVATE,
    Sites,
    components_of,
    sites_of,
)
from flows.reproductions.tensor_makers import Maker

MAKERS = tuple(
    Maker(model=model, n_features=features, n_components=count)
    for model in ("topics", "mixture")
    for features, count in ((10, 5), (50, 10))
)
DELTA, EPSILON = 0.01, 0.5
EPSILONS = (0.05, 0.1, 0.5, 1.0, 5.0)
DELTAS = (1e-4, 1e-3, 1e-2)
RECORDS, USUAL, MANY = (50_000, 100_000, 200_000, 400_000, 800_000), 100_000, 800_000
OF_MANY = (0.1, 0.5, 1.0)
"""The epsilons that are run with `MANY` records."""
BY_EPSILON, BY_DELTA, BY_RECORDS, OF_MANY_RECORDS = "by_epsilon", "by_delta", "by_records", "of_many_records"
MEASURES = ("error", "nearest", "weights", "found")


def tensor_sweeps(maker: Maker, *, draws: int) -> list[dict[str, Any]]:
    """Return mean errors along epsilon, delta and records, over draws of components, records and noise."""
    found = [list(_rows(maker, draw=draw)) for draw in range(draws)]
    means = []
    for same in zip(*found, strict=True):
        means.append({**same[0], **{name: float(np.mean([row[name] for row in same])) for name in MEASURES}})
    return means


def _rows(maker: Maker, *, draw: int) -> Iterator[dict[str, Any]]:
    records = maker.records(MANY, draw=draw)

    def first(count: int) -> Sites:
        return sites_of(maker, records[:count], draw=draw)

    usual, many = first(USUAL), first(MANY)
    for epsilon in EPSILONS:
        yield from _cell(usual, sweep=BY_EPSILON, epsilon=epsilon)
    for delta in DELTAS:
        yield from _cell(usual, sweep=BY_DELTA, delta=delta)
    for count in RECORDS:
        sites = {USUAL: usual, MANY: many}.get(count) or first(count)
        yield from _cell(sites, sweep=BY_RECORDS)
    for epsilon in OF_MANY:
        arms = (CAPE, NON_PRIVATE)
        yield from _cell(many, sweep=OF_MANY_RECORDS, epsilon=epsilon, arms=arms)


def _cell(
    sites: Sites,
    *,
    sweep: str,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    arms: Sequence[str] = ARMS,
) -> Iterator[dict[str, Any]]:
    """Run arms on a draw, and iterate over the rows of the table."""
    maker = sites.maker
    truth = maker.components(draw=sites.draw)
    for arm in arms:
        result = components_of(arm, sites, epsilon=epsilon, delta=delta, seed=sites.draw)
        weights = matched_weights(result.components, result.weights, truth)
        yield {
            "data": maker.name,
            "sweep": sweep,
            "epsilon": epsilon,
            "delta": delta,
            "N_s": sites.records,
            "arm": arm,
            "error": float(matched_errors(result.components, truth).mean()),
            "nearest": nearest_error(result.components, truth),
            "weights": float(np.abs(weights - maker.weights).mean()),
            "found": len(result.components),
        }
