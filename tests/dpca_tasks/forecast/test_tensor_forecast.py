"""The forecast of components agrees with simulated releases, whose noise is drawn as it is assumed."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from dpca_tasks.audit.attacks import RecordingCurator
from dpca_tasks.forecast.tensor_forecast import LARGEST_CORE, lengths_of, longest_row, noise_of, overlap_of, room_for
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.tensors.agn import Agn
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.tensor_moments import components_of, mixture_eigenspace, moment_floor
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem, TensorReleases
from dpca_tasks.noise.distributions import NoiseDistribution
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.point_triples import PointTriples
from dpca_tasks.queries.words import WordTriples
from dpca_tasks.records.sources import ArrayBlocks

COLUMNS, RECORDS, RUNS = 60, 10_000, 6


def symmetric(rng, order, std, *, axes):
    """Isometric noise: an array of independent numbers, averaged over the orders of its axes."""
    noise = rng.standard_normal((order,) * axes) * std
    return sum(noise.transpose(axis) for axis in itertools.permutations(range(axes))) / math.factorial(axes)


def found_share(seed, count, *, moment_std, core_std):
    """Release moments of orthonormal centres of equal weight; return the share of centres that is found."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.standard_normal((COLUMNS, count)))[0].T
    moment = RECORDS / count * centres.T @ centres + symmetric(rng, COLUMNS, moment_std, axes=2)
    floor = moment_floor(COLUMNS, noise_std=moment_std)
    space = mixture_eigenspace(moment, n_components=count, floor=floor, n_records=RECORDS, noise_variance=0.0)
    scores = centres @ space.directions
    core = RECORDS / count * np.einsum("ni,nj,nk->ijk", scores, scores, scores)
    noisy = core + symmetric(rng, len(core), core_std, axes=3)
    components = components_of(noisy, space, model="mixture").components
    padded = np.vstack([components, np.zeros((count, COLUMNS))])
    cosines = centres @ padded.T / np.maximum(np.linalg.norm(padded, axis=1), 1e-12)
    rows, columns = linear_sum_assignment(-cosines)
    return float((cosines[rows, columns] > 0.65).mean())


@pytest.mark.parametrize("count", [4, 10])
@pytest.mark.parametrize(
    ("above_moment", "above_core", "low", "high"),
    [(1.3, 1.3, 0.95, 1.0), (2.0, 1.2, 0.9, 1.0), (0.5, 5.0, 0.0, 0.25), (2.0, 0.4, 0.0, 0.75)],
    ids=["room", "room in the third", "none in the second", "little in the third"],
)
def test_components_are_found_where_there_is_room(count, above_moment, above_core, low, high):
    """Means of six draws from fixed seeds, with margins beyond any of thirty draws that were looked at."""
    edge = RECORDS / count / above_moment
    overlap = overlap_of(RECORDS / count, edge)
    moment_std = edge / math.sqrt(2 * COLUMNS)
    core_std = RECORDS / count * max(overlap, 0.1) ** 3 / (above_core * LARGEST_CORE * math.sqrt(count))
    seen = room_for(
        count,
        n_records=RECORDS,
        n_features=COLUMNS,
        length=lambda _: 1.0,
        moment_std=moment_std,
        core_std=lambda *_: core_std,
    )
    assert (seen.room >= count) is (min(above_moment, above_core) > 1)
    shares = [found_share(seed, count, moment_std=moment_std, core_std=core_std) for seed in range(RUNS)]
    assert low <= np.mean(shares) <= high


def test_more_records_leave_more_room_and_nobody_leaves_none():
    rooms = [
        room_for(5, n_records=n, n_features=50, length=lambda _: 1.0, moment_std=10.0, core_std=lambda *_: 10.0).room
        for n in (1, 1_000, 10_000, 1e9)
    ]
    assert rooms == sorted(rooms)
    assert (rooms[0], rooms[-1]) == (0, 49)


def test_the_largest_value_of_noise_of_order_three_is_that_of_the_spherical_model():
    """The best of 40 starts, of three draws; finite sizes stay below the limit, by less than a sixth at 20."""
    rng, order, largest = np.random.default_rng(3), 20, []
    for _ in range(3):
        noise = symmetric(rng, order, 1.0, axes=3).reshape(order, -1)
        points = rng.standard_normal((40, order))
        for _ in range(100):
            once = (points @ noise).reshape(-1, order, order)
            points = (once @ points[:, :, None])[:, :, 0] + 4.0 * points
            points /= np.linalg.norm(points, axis=1, keepdims=True)
        once = (points @ noise).reshape(-1, order, order)
        largest.append(np.einsum("rij,ri,rj->r", once, points, points).max())
    assert 0.84 * LARGEST_CORE < np.mean(largest) / math.sqrt(order) < LARGEST_CORE


@pytest.mark.parametrize("overlap", [1.0, 0.87, 0.0])
def test_rows_of_released_directions_are_about_as_long_as_assumed(overlap):
    """Topics of words of their own, evenly used; directions off by the stated cosine, at random."""
    rng, features, count = np.random.default_rng(4), 200, 5
    topics = np.kron(np.eye(count), np.ones(features // count)) * math.sqrt(count / features)
    noise = np.linalg.qr(rng.standard_normal((features, count)))[0].T
    longest = np.linalg.norm(overlap * topics + math.sqrt(1 - overlap**2) * noise, axis=0).max()
    assumed = longest_row(count, n_features=features, length=math.sqrt(count / features), overlap=overlap)
    assert assumed == pytest.approx(longest, rel=0.5)
    assert assumed > 0.95 * longest


def of_model(model, rng):
    """Return the terms of a model, and 3,000 records of three components that are as it is assumed."""
    which = rng.integers(0, 3, 3000)
    if model == "topics":
        chances = np.kron(np.eye(3), np.ones(4)) / 4
        rows = np.stack([rng.multinomial(8, chances[topic]) for topic in which])
        return {"n_features": 12, "model": model, "words_at_most": 8}, rows
    rows = np.eye(12)[which] + math.sqrt(0.02) * rng.standard_normal((3000, 12))
    facts = {"n_features": 12, "model": model, "clip_norm": 1.3 * math.sqrt(1 + 12 * 0.02), "noise_variance": 0.02}
    return facts, rows


@pytest.mark.parametrize("model", ["topics", "mixture"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "mechanism",
    [Agn(components=3), Avn(components=3), Agn(components=3, calibration="paper")],
    ids=["agn", "avn", "paper"],
)
def test_the_noise_that_is_forecast_is_that_of_the_release(mechanism, relation, model):
    """That of the second moment exactly; that of the third as far as the length of rows of directions is known."""
    facts, rows = of_model(model, np.random.default_rng(5))
    problem = TensorProblem(**facts, relation=relation, records_at_most=3000)
    plan = mechanism.plan(problem, PrivacyTarget(epsilon=5.0, delta=1e-5))
    curator = RecordingCurator(
        ArrayBlocks(rows.astype(float)), InMemoryReservation(event=plan.event, relation=relation)
    )
    result = mechanism.run(curator, plan)
    releases = TensorReleases(problem=problem, components=3)
    length = lengths_of(releases, declared=None)
    assert length(3) == pytest.approx(0.5 if model == "topics" else 1.0)
    noise = noise_of(plan, releases, length=length)
    assert noise.moment_std * math.sqrt(2 * 12) == pytest.approx(result.outcome["floor"])
    query, distribution, _ = curator.recorded[1]
    assert isinstance(query, WordTriples | PointTriples)
    assert isinstance(distribution, NoiseDistribution)
    asked = query.layout.order
    drawn = distribution.noise_multiplier * (math.sqrt(math.comb(asked + 2, 3) + 1) if mechanism.name == "avn" else 1)
    overlap = overlap_of(1000 * length(3) ** 2, result.outcome["floor"])
    assert noise.core_std(asked, overlap) == pytest.approx(drawn * query.sensitivity("l2") * query.unit, rel=0.35)


def test_a_declared_length_is_taken_as_it_is():
    problem = TensorProblem(n_features=12, model="topics", words_at_most=8)
    assert lengths_of(TensorReleases(problem=problem, components=3), declared=0.25)(7) == 0.25
