"""Mechanisms that sample rows (DP-SPCA), compared with the work that they cannot avoid.

This work consists of matrix products, empty rounds on the cluster, and drawing noise. The time of calibration is
measured too. Each bar (the bound that a result must meet) is a constant in this file.
"""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.conftest import Comparison, Measurement
from benchmarks.gauges import seconds_of
from benchmarks.homes import ingested_rows, own_home
from benchmarks.inputs import MNIST, WIDE, one_hot_rows, spine_inputs
from dpca_tasks.accounting.subsampled import (
    FOLDER_VARIABLE,
    cached_sampled_multiplier,
    sampled_gaussian_is_private,
    sampled_gaussian_noise_multiplier,
)
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.noisy_products import product_query, start_directions
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import Residency
from flows.clusters.connecting import connect, open_cluster
from flows.settings import Settings
from storage.ledger.step_answers import Reservation
from storage.workspace import Workspace

WORKERS, COMPONENTS, RATE, STEPS = 2, 10, 0.1, 100
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
OVER_PRODUCTS = 1.5
ONE_ROW = 32_561  # the number of records of a9a; a run with one row per step has as many steps
OVER_NOISE = 1.6
CALIBRATION_SECONDS = 30.0
TOY_STEPS = 3
DRAWS_AT_ONCE = 1 << 16


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set a temporary home folder and a temporary cache folder for calibrations."""
    with own_home(tmp_path_factory.mktemp("home")) as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(place / "cache"))
        yield place


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Start a local Dask cluster whose workers have one thread each."""
    settings = Settings(cluster="local", workers=WORKERS)
    with open_cluster(settings, scratch=tmp_path_factory.mktemp("scratch")) as address, connect(address) as connected:
        assert connected is not None
        yield connected


def bench_dp_spca(client: Client, tmp_path: Path, compare: Comparison, *, toy: bool) -> None:
    """Time DP-SPCA on a cluster, compared with its products, empty sums and commits alone.

    Both sides store the answer of every step durably.
    """
    declared = WIDE if toy else MNIST
    if declared is MNIST and MNIST not in spine_inputs():
        pytest.skip("`make data` fetches MNIST")
    rows = declared.rows(toy=toy)
    steps = TOY_STEPS if toy else STEPS
    ledger = Workspace.open().ledger
    ledger.open_budget(declared.name, epsilon=100.0, delta=1e-3, allow_large_delta=True)
    snapshot = ingested_rows(rows, declared, ledger, tmp_path)
    problem = Problem(n_features=declared.n_features, clip_norm=declared.clip_norm, records_at_most=declared.n_rows)
    mechanism = DpSpca(n_components=COMPONENTS, rate=RATE, steps=steps)
    plan = mechanism.plan(problem, TARGET)
    halves = client.scatter([rows[at::WORKERS] for at in range(WORKERS)])
    directions = start_directions(declared.n_features, COMPONENTS)
    empty = ArrayBlocks(np.empty((0, declared.n_features)))
    numbers = count()

    def reserved() -> Reservation:
        number = next(numbers)
        granted = ledger.reserve(
            declared.name,
            run_key=f"run {number}",
            fingerprint=str(number),
            event=plan.event,
            epsilon=TARGET.epsilon,
            delta=TARGET.delta,
            snapshot_id="s" * 32,
            request={},
        )
        return ledger.begin(granted.release_id)

    def ours() -> Subspace:
        return mechanism.run(Curator(snapshot, reserved(), client=client), plan)

    def bare() -> None:
        futures = [client.submit(_products, half, directions, RATE, steps, pure=False) for half in halves]
        client.gather(futures)
        query, residency = product_query(problem, bits=plan.bits, directions=directions), Residency()
        commits = reserved()
        for step in range(steps):
            answer = exact_sum(empty, query, client=client, residency=residency)
            commits.keep(step, {"answer": answer, "public.directions": query.directions})

    name = "products-and-rounds"
    results = compare(ours, {name: bare}, limits={name: OVER_PRODUCTS}, rounds=3)
    assert results["ours"].components.shape == (COMPONENTS, declared.n_features)


def bench_one_row(compare: Comparison, *, toy: bool) -> None:
    """Time DP-SPCA with one step per record, compared with drawing only the noise of all steps.

    All steps run in one compiled loop. The noise is drawn from the same keystream on both sides.
    """
    records = 50 if toy else ONE_ROW
    source = ArrayBlocks(one_hot_rows(records))
    problem = Problem(n_features=source.n_features, clip_norm=14**0.5, records_at_most=records)
    mechanism = DpSpca(n_components=COMPONENTS, form="one_row", integrated_time=100.0)
    plan = mechanism.plan(problem, TARGET)
    law, key = Gaussian(noise_multiplier=plan.noise_multiplier), subkey(bytes(32), label="noise", info=b"")
    draws = records * source.n_features * COMPONENTS

    def noise() -> None:
        for first in range(0, draws, DRAWS_AT_ONCE):
            law.draw(key, draws, scale_in_steps=2.0**20, start=first, stop=min(first + DRAWS_AT_ONCE, draws))

    results = compare(
        lambda: mechanism.run(
            Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation)), plan
        ),
        {"its-noise": noise},
        limits={"its-noise": OVER_NOISE},
    )
    assert results["ours"].components.shape == (COMPONENTS, source.n_features)


@pytest.mark.parametrize("records", [ONE_ROW, 60_000], ids=["a9a", "mnist"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0], ids=["0.1", "1"])
def bench_calibration(records: int, epsilon: float, measure: Measurement, *, toy: bool) -> None:
    """Time the calibration of a run with one row per step, and then reading and verifying the cached result."""
    steps = 10 if toy else records
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6, "rate": 1 / steps, "steps": steps}
    search = seconds_of(lambda: sampled_gaussian_noise_multiplier(**terms))
    measure("seconds", search, at_most=CALIBRATION_SECONDS)
    found = cached_sampled_multiplier(**terms)
    assert sampled_gaussian_is_private(found, **terms)
    assert len([*Path(os.environ[FOLDER_VARIABLE]).rglob("*.json")]) > 0
    cached_sampled_multiplier.cache_clear()
    measure("seconds-from-disk", seconds_of(lambda: cached_sampled_multiplier(**terms)))


def _products(rows: sparse.csr_array, directions: NDArray[np.float64], rate: float, steps: int) -> NDArray[np.float64]:
    """Draw a new sample of rows in each step, and sum the products of the samples with the directions.

    The rows are floats in memory. There is no clipping, no gridding, no key and no noise.
    """
    rng = np.random.default_rng(0)
    total = np.zeros(directions.shape)
    for _ in range(steps):
        sample = rows[rng.random(rows.shape[0]) < rate]
        total += sample.T @ (sample @ directions)
    return total
