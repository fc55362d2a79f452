"""Stored digests of requests stay as they are, whatever classes are called: a release under way can be finished."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.noise.bingham import DirectionMechanism, GibbsChain, Peeling
from dpca_tasks.noise.distributions import (
    Gaussian,
    Laplace,
    NoiseDistribution,
    Symmetric,
    SymmetricLaplace,
    UpperTriangle,
)
from dpca_tasks.noise.wishart import WishartDifference
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.noised_directions import PerturbationMechanism, ProposedGap, SmoothNoise
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.clipped_product import ClippedProduct, ReplacedProduct
from dpca_tasks.queries.counts import NormHistogram
from dpca_tasks.queries.eigensolver_product import ExactProduct
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.operator_product import UnroundedProduct
from dpca_tasks.queries.poisson_sampled import PoissonSampled, SampledPasses
from dpca_tasks.queries.recentred_moment import ShiftedMoment
from dpca_tasks.queries.record_mean import RecordMean
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sites.shares import Share
from tests.dpca_tasks.privacy.concrete import concrete

STORED = json.loads((Path(__file__).parent / "stored_digests.json").read_text())
"""What the version before queries and distributions stated their names stored, by request."""

RELATIONS = ("add_remove", "zero_out", "replace_one")
ROWS = np.arange(12.0).reshape(4, 3) / 10
DIRECTIONS = np.array([[1 << 24, 0], [0, 1 << 23], [0, 1 << 22]])
SHIFT = np.array([100, -7, 0])

GAUSSIANS = {"gaussian": Gaussian(noise_multiplier=4.0)}
VECTORS = GAUSSIANS | {"laplace": Laplace(noise_multiplier=4.0)}
ISOMETRIC = {"symmetric": Symmetric(noise_multiplier=4.0)}
MATRICES = ISOMETRIC | {
    "upper_triangle": UpperTriangle(noise_multiplier=4.0),
    "symmetric_laplace": SymmetricLaplace(noise_multiplier=4.0),
    "wishart": WishartDifference(epsilon=0.5),
}
SCORES = {
    "peeling": Peeling(n_components=2, epsilon=1.0, delta=0.0),
    "gibbs": GibbsChain(n_components=2, epsilon=1.0, delta=1e-3),
}
PERTURBED = {
    **{
        shape: SmoothNoise(shape=shape, shift=0.5, smoothness=0.1, epsilon=1.0, delta=0.1)
        for shape in ("gaussian", "spherical_t", "cauchy")
    },
    "proposed": ProposedGap(gap_epsilon=0.5, gap_delta=0.01, noise_multiplier=4.0, epsilon=1.0, delta=0.1),
}


def facts(relation):
    return {"n_features": 3, "clip_norm": 1.5, "relation": relation, "bits": 10}


def sampled(query, rate):
    return PoissonSampled(**facts(query.relation), query=query, rate=rate)


def queries(relation):
    """Every query that is asked of a curator, by a name of its own here, and what it is asked under."""
    terms = facts(relation)
    product = MomentProduct(**terms, directions=DIRECTIONS)
    replaced = ReplacedProduct(**terms, directions=DIRECTIONS)
    moment, centred, mean = SecondMoment(**terms), CentredMoment(**terms), RecordMean(**terms)
    solver = {"n_features": 3, "clip_norm": 1.5, "relation": relation, "n_components": 1, "passes": 3}
    yield "moment", moment, {"release": MATRICES, "release_operator": ISOMETRIC, "sample": SCORES, "disclose": {}}
    yield "centred", centred, {"release": MATRICES, "release_operator": ISOMETRIC, "disclose": {}}
    yield "shifted", ShiftedMoment(**terms, shift=SHIFT), {"sample": SCORES}
    yield "mean", mean, {"release": VECTORS}
    yield "mean of a sample", sampled(mean, 1.0), {"release": VECTORS}
    yield "histogram", NormHistogram(**terms | {"clip_norm": 1.0}, edges=np.array([0.5, 1.0])), {"release": VECTORS}
    for name, query in (("product", product), ("replaced", replaced)):
        yield name, query, {"release": GAUSSIANS}
        yield f"sampled {name}", sampled(query, 0.5), {"release": GAUSSIANS}
    yield "clipped", ClippedProduct(**terms, directions=DIRECTIONS, message_clip=0.25), {"release": GAUSSIANS}
    run = SampledPasses(query=sampled(product, 0.5), steps=2, factor=0.1, snapshots=(0, 2))
    yield "run", run, {"sequential": GAUSSIANS}
    yield "run of all", dataclasses.replace(run, query=product), {"sequential": GAUSSIANS}
    yield "solver", Eigensolver(**solver), {"perturb": PERTURBED}
    yield "solver around a mean", Eigensolver(**solver, shift=SHIFT), {"perturb": PERTURBED}
    if relation != "add_remove":
        for name, reported in (("moment", moment), ("centred", centred)):
            yield f"reports of {name}", LocallyNoised.of(reported), {"release": ISOMETRIC}


def requests(relation):
    for name, query, ways in queries(relation):
        for way, distributions in ways.items():
            for label, distribution in (distributions or {"": None}).items():
                yield f"{relation}: {way}, {name}, {label}", way, query, distribution


def stored_digest(way, query, distribution):
    """Ask for a request, and return the digest that is stored with its answer."""
    event = events.non_private()
    if distribution is not None:
        summed = query.query if way == "sequential" else query
        event = summed.event_of(distribution.event)
    reservation = InMemoryReservation(
        event=events.self_composed(event, 2) if way == "sequential" else event, key=bytes(32), relation=query.relation
    )
    curator = DisclosingCurator(ArrayBlocks(ROWS), reservation, i_know_this_is_not_private=True)
    answer = getattr(curator, way)(query, *([] if distribution is None else [distribution]))
    if way == "release_operator":
        answer.product(np.eye(answer.order, 2, dtype=np.int64) << 15)
    return reservation.steps[0]["question"].tobytes().hex()


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_request_has_the_digest_that_was_stored_before_names_were_stated(relation):
    made = {name: stored_digest(*request) for name, *request in requests(relation)}
    assert made == {name: digest for name, digest in STORED.items() if name.startswith(relation)}
    assert len(set(made.values())) == len(made)


def renamed(thing):
    """The same query or distribution, of a class that has another name."""
    kind = type(thing)
    other = type("Renamed", (kind,), {"__slots__": (), "__qualname__": "Elsewhere.Renamed"})
    changed: Any = object.__new__(other)
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        object.__setattr__(changed, field.name, renamed(value) if isinstance(value, RowSum) else value)
    return changed


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_class_name_enters_a_digest(relation):
    for name, way, query, distribution in requests(relation):
        drawn = None if distribution is None else renamed(distribution)
        assert stored_digest(way, renamed(query), drawn) == STORED[name], name


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_class_name_enters_the_digest_of_a_sum_inside_the_boundary(relation):
    moment = SecondMoment(**facts(relation))
    for query in (
        UnroundedProduct.of(moment, np.eye(3, 2, dtype=np.int64)),
        ExactProduct(**facts(relation), directions=np.eye(3, 2, dtype=np.int64) << 36, shift=None),
    ):
        assert renamed(query).digest() == query.digest()


def test_names_and_versions_tell_all_queries_and_distributions_apart():
    named = [(kind.name, kind.version) for kind in concrete(RowSum)]
    assert len(set(named)) == len(named)
    bases = (NoiseDistribution, DirectionMechanism, PerturbationMechanism, Share)
    drawn = [kind for base in bases for kind in concrete(base)]
    assert len({kind.name for kind in drawn}) == len(drawn)
