"""The closed table: every query and every distribution has its rows, and the rows say what the queries prove."""

import math
from typing import Any

import pytest

from dpca_tasks.noise.bingham import DirectionMechanism
from dpca_tasks.noise.distributions import NoiseDistribution
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.privacy.curator import NoNoise
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.noised_directions import PerturbationMechanism
from dpca_tasks.privacy.sensitivities import TABLE, WITHOUT_ROW
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.sites.shares import Share
from tests.dpca_tasks.privacy.concrete import concrete
from tests.dpca_tasks.privacy.test_request_digest import RELATIONS, queries, sampled
from tests.dpca_tasks.queries.query_table import (
    captured_energies,
    energies_around_a_mean,
    point_triples,
    rejected_records,
    streamed_centred,
    streamed_centred_with_signs,
    streamed_moment,
    streamed_with_signs,
    word_pairs,
    word_triples,
)
from tests.dpca_tasks.queries.rating_queries import averages, moment, scores, statistics, totals

NO_QUERY_YET = {"SymmetricStack"}
"""Distributions of a layout that no query has, or only parts of joint ones."""

DISTRIBUTIONS = {
    kind.name: kind
    for base in (NoiseDistribution, DirectionMechanism, PerturbationMechanism, Share)
    for kind in concrete(base)
} | {JointGaussian.name: JointGaussian}
NO_LAYOUT = (NoNoise.name, JointGaussian.name, "SmoothNoise", "ProposedGap")


def asked(relation):
    """Every query by its kind, samples of those that are released elsewhere included."""
    found: dict[str, Any] = {}
    for _, query, ways in queries(relation):
        found.setdefault(query.kind, query)
        if query.name == "centred_moment" and relation != "add_remove":
            found.setdefault(LocallyNoised.of(query).kind, LocallyNoised.of(query))
        if "release" in ways and not isinstance(query, PoissonSampled):
            found.setdefault(f"sampled {query.kind}", sampled(query, 0.5) if query.clip_norm == 1.5 else query)
    of_ratings = (averages(relation), totals(relation), statistics(relation), moment(relation), scores(relation))
    energies = (captured_energies(relation, 10), energies_around_a_mean(relation, 10), rejected_records(relation, 10))
    of_tensors = [build(relation, 10) for build in (word_pairs, word_triples, point_triples)]
    streamed = (streamed_moment, streamed_centred, streamed_with_signs, streamed_centred_with_signs)
    ticks = [build(relation, 10) for build in streamed]
    return found | {query.kind: query for query in (*of_ratings, *energies, *of_tensors, *ticks)}


def test_every_query_has_a_row_or_never_leaves():
    rows = {row.query for row in TABLE}
    for kind in concrete(RowSum):
        if kind is not PoissonSampled:
            stated = any(row.startswith(f"{kind.name} {kind.version}") for row in rows)
            assert stated is not (kind.name in WITHOUT_ROW), kind.name
    assert any(row.startswith(f"{Eigensolver.name} {Eigensolver.version}") for row in rows)
    assert rows <= asked("zero_out").keys()


def test_every_distribution_has_a_row_and_every_name_in_a_row_is_one():
    named = {name for row in TABLE for name in row.distributions}
    assert named == DISTRIBUTIONS.keys() - NO_QUERY_YET | {NoNoise.name}


def test_a_pair_has_one_row_in_the_norm_of_its_distribution():
    pairs = [(row.query, name) for row in TABLE for name in row.distributions]
    assert len(set(pairs)) == len(pairs)
    for row in TABLE:
        for name in row.distributions:
            assert row.norm == (DISTRIBUTIONS | {NoNoise.name: NoNoise})[name].norm
            if name not in NO_LAYOUT:
                assert DISTRIBUTIONS[name].layout == asked("zero_out")[row.query].layout.kind


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_row_states_what_its_query_states_and_no_less(relation):
    for row in TABLE:
        stated = getattr(row, relation)
        query = asked(relation).get(row.query)
        if stated is None:
            assert query is None
        elif row.norm == NoNoise.norm:
            assert stated == math.inf
        else:
            stated = stated(query.n_features) if callable(stated) else stated
            proved = query.sensitivity(row.norm) / (query.zeta if row.per_zeta else 1.0)
            assert proved <= stated * (1 + 1e-14), row
            assert not row.is_sharp or stated <= proved * (1 + 1e-14), row


@pytest.mark.parametrize("features", [1, 2, 3, 4, 100, 10_000])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_row_of_several_features_states_what_its_query_states(relation, features):
    facts = {"n_features": features, "clip_norm": 1.5, "relation": relation, "bits": 10}
    kinds = {kind.name + f" {kind.version}": kind for kind in concrete(RowSum)}
    for row in TABLE:
        stated = getattr(row, relation)
        if callable(stated) and not row.query.startswith("sampled"):
            assert kinds[row.query](**facts).sensitivity(row.norm) == pytest.approx(stated(features), rel=1e-14)
