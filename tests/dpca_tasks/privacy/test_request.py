"""Requests to the curator: stored digests, the table of sensitivities, and charged terms.

Stored digests must not change when classes are renamed, so that a release in progress can be finished. Every query and
every distribution must have rows in the closed table, and the rows must match what the queries prove. Every method of
the curator must use the relation and the snapshot that were charged.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput, StepMismatch
from dpca_tasks.noise.bingham import DirectionMechanism, GibbsChain, Peeling
from dpca_tasks.noise.distributions import (
    Gaussian,
    JointGaussian,
    Laplace,
    NoiseDistribution,
    Symmetric,
    SymmetricLaplace,
    UpperTriangle,
)
from dpca_tasks.noise.pure_matrices import WishartDifference
from dpca_tasks.privacy.curator import Curator, DisclosingCurator, NoNoise
from dpca_tasks.privacy.eigensolver import Eigensolver
from dpca_tasks.privacy.gate import Arrays, InMemoryReservation
from dpca_tasks.privacy.noised_directions import PerturbationMechanism, ProposedGap, SmoothNoise
from dpca_tasks.privacy.request import TABLE, WITHOUT_ROW
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.counts import NormHistogram
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.operator_product import ExactProduct, UnroundedProduct
from dpca_tasks.queries.poisson_sampled import PoissonSampled, SampledPasses
from dpca_tasks.queries.poisson_sampled import sampled as charged_terms_sampled
from dpca_tasks.queries.recentred_moment import ShiftedMoment
from dpca_tasks.queries.rounded_product import ClippedProduct, MomentProduct, ReplacedProduct, on_direction_grid
from dpca_tasks.queries.second_moment import CentredMoment, RecordMean, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks, NormalisedBlocks
from dpca_tasks.sites.rounds import Share
from tests.dpca_tasks.conftest import concrete
from tests.dpca_tasks.queries.query_table import (
    captured_energies,
    energies_around_a_mean,
    mapped_around_a_mean,
    mapped_moment,
    point_triples,
    rejected_records,
    streamed_around_a_mean,
    streamed_around_a_mean_with_signs,
    streamed_centred,
    streamed_centred_with_signs,
    streamed_map,
    streamed_map_with_signs,
    streamed_moment,
    streamed_with_signs,
    word_pairs,
    word_triples,
)
from tests.dpca_tasks.queries.rating_queries import averages, moment, scores, statistics, totals

STORED = json.loads((Path(__file__).parent / "stored_digests.json").read_text())
"""Digests by request, as stored by the version before queries and distributions stated their names."""

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
    """Yield name, query, and curator methods of every query that is released, with their noise distributions."""
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
    for name, query, variants in queries(relation):
        for variant, distributions in variants.items():
            for label, distribution in (distributions or {"": None}).items():
                yield f"{relation}: {variant}, {name}, {label}", variant, query, distribution


def stored_digest(variant, query, distribution):
    """Run a curator method on a query, and return the digest that is stored with the answer."""
    event = events.non_private()
    if distribution is not None:
        summed = query.query if variant == "sequential" else query
        event = summed.event_of(distribution.event)
    reservation = InMemoryReservation(
        event=events.self_composed(event, 2) if variant == "sequential" else event,
        key=bytes(32),
        relation=query.relation,
    )
    curator = DisclosingCurator(ArrayBlocks(ROWS), reservation, i_know_this_is_not_private=True)
    answer = getattr(curator, variant)(query, *([] if distribution is None else [distribution]))
    if variant == "release_operator":
        answer.product(np.eye(answer.order, 2, dtype=np.int64) << 15)
    return reservation.steps[0]["question"].tobytes().hex()


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_request_has_the_digest_that_was_stored_before_names_were_stated(relation):
    made = {name: stored_digest(*request) for name, *request in requests(relation)}
    assert made == {name: digest for name, digest in STORED.items() if name.startswith(relation)}
    assert len(set(made.values())) == len(made)


def renamed(thing):
    """Return an equal query or distribution as an instance of a class with another name."""
    kind = type(thing)
    other = type("Renamed", (kind,), {"__slots__": (), "__qualname__": "Elsewhere.Renamed"})
    changed: Any = object.__new__(other)
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        object.__setattr__(changed, field.name, renamed(value) if isinstance(value, RowSum) else value)
    return changed


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_class_name_enters_a_digest(relation):
    for name, variant, query, distribution in requests(relation):
        drawn = None if distribution is None else renamed(distribution)
        assert stored_digest(variant, renamed(query), drawn) == STORED[name], name


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_class_name_enters_the_digest_of_a_sum_inside_the_boundary(relation):
    moment = SecondMoment(**facts(relation))
    for query in (
        UnroundedProduct.of(moment, np.eye(3, 2, dtype=np.int64)),
        ExactProduct(**facts(relation), directions=np.eye(3, 2, dtype=np.int64) << 36, shift=None),
    ):
        assert renamed(query).digest() == query.digest()


def test_names_and_versions_distinguish_all_queries_and_distributions():
    named = [(kind.name, kind.version) for kind in concrete(RowSum)]
    assert len(set(named)) == len(named)
    bases = (NoiseDistribution, DirectionMechanism, PerturbationMechanism, Share)
    drawn = [kind for base in bases for kind in concrete(base)]
    assert len({kind.name for kind in drawn}) == len(drawn)


NO_QUERY_YET = {"SymmetricStack"}
"""Distributions of a layout that no query has, or that occurs only in parts of joint queries."""

DISTRIBUTIONS = {
    kind.name: kind
    for base in (NoiseDistribution, DirectionMechanism, PerturbationMechanism, Share)
    for kind in concrete(base)
} | {JointGaussian.name: JointGaussian}
NO_LAYOUT = (NoNoise.name, JointGaussian.name, "SmoothNoise", "ProposedGap")


def requested(relation):
    """Return every query by its kind, including samples of queries that other mechanisms release unsampled."""
    found: dict[str, Any] = {}
    for _, query, variants in queries(relation):
        found.setdefault(query.kind, query)
        if query.name == "centred_moment" and relation != "add_remove":
            found.setdefault(LocallyNoised.of(query).kind, LocallyNoised.of(query))
        if "release" in variants and not isinstance(query, PoissonSampled):
            found.setdefault(f"sampled {query.kind}", sampled(query, 0.5) if query.clip_norm == 1.5 else query)
    of_ratings = (averages(relation), totals(relation), statistics(relation), moment(relation), scores(relation))
    energies = (captured_energies(relation, 10), energies_around_a_mean(relation, 10), rejected_records(relation, 10))
    of_tensors = [build(relation, 10) for build in (word_pairs, word_triples, point_triples)]
    streamed = (streamed_moment, streamed_centred, streamed_with_signs, streamed_centred_with_signs)
    mapped = (streamed_map, streamed_around_a_mean, streamed_map_with_signs, streamed_around_a_mean_with_signs)
    moments = [build(relation, 10) for build in (*streamed, *mapped, mapped_moment, mapped_around_a_mean)]
    return found | {query.kind: query for query in (*of_ratings, *energies, *of_tensors, *moments)}


def test_every_query_has_a_row_or_is_never_released():
    rows = {row.query for row in TABLE}
    for kind in concrete(RowSum):
        if kind is not PoissonSampled:
            declared = any(row.startswith(f"{kind.name} {kind.version}") for row in rows)
            assert declared is not (kind.name in WITHOUT_ROW), kind.name
    assert any(row.startswith(f"{Eigensolver.name} {Eigensolver.version}") for row in rows)
    assert rows <= requested("zero_out").keys()


def test_every_distribution_has_a_row_and_every_row_names_a_distribution():
    named = {name for row in TABLE for name in row.distributions}
    assert named == DISTRIBUTIONS.keys() - NO_QUERY_YET | {NoNoise.name}


def test_a_pair_has_one_row_in_the_norm_of_its_distribution():
    pairs = [(row.query, name) for row in TABLE for name in row.distributions]
    assert len(set(pairs)) == len(pairs)
    for row in TABLE:
        for name in row.distributions:
            assert row.norm == (DISTRIBUTIONS | {NoNoise.name: NoNoise})[name].norm
            if name not in NO_LAYOUT:
                assert DISTRIBUTIONS[name].layout == requested("zero_out")[row.query].layout.kind


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_row_states_what_its_query_states_and_no_less(relation):
    for row in TABLE:
        declared = getattr(row, relation)
        query = requested(relation).get(row.query)
        if declared is None:
            assert query is None
        elif row.norm == NoNoise.norm:
            assert declared == math.inf
        else:
            declared = declared(query.n_features) if callable(declared) else declared
            proved = query.sensitivity(row.norm) / (query.zeta if row.per_zeta else 1.0)
            assert proved <= declared * (1 + 1e-14), row
            assert not row.is_sharp or declared <= proved * (1 + 1e-14), row


@pytest.mark.parametrize("features", [1, 2, 3, 4, 100, 10_000])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_row_of_several_features_states_what_its_query_states(relation, features):
    facts = {"n_features": features, "clip_norm": 1.5, "relation": relation, "bits": 10}
    kinds = {kind.name + f" {kind.version}": kind for kind in concrete(RowSum)}
    for row in TABLE:
        declared = getattr(row, relation)
        if callable(declared) and not row.query.startswith("sampled"):
            assert kinds[row.query](**facts).sensitivity(row.norm) == pytest.approx(declared(features), rel=1e-14)


CHARGED_TERMS_RELATIONS = get_args(Relation)
CHARGED_TERMS_ROWS = np.random.default_rng(2).standard_normal((30, 5)) / 3
CHARGED_TERMS_DIRECTIONS = on_direction_grid(np.eye(5)[:, :2])

SYMMETRIC, GAUSSIAN = Symmetric(noise_multiplier=4.0), Gaussian(noise_multiplier=4.0)
DRAWN = Peeling(n_components=1, epsilon=1.0, delta=0.0)
SMOOTH = SmoothNoise(shape="cauchy", shift=1.0, smoothness=0.1, epsilon=1.0, delta=0.0)


def terms(relation):
    return {"n_features": 5, "clip_norm": 1.0, "relation": relation, "bits": 10}


def moment_of_charged_terms(relation):
    return SecondMoment(**terms(relation))


def product(relation):
    return MomentProduct(**terms(relation), directions=CHARGED_TERMS_DIRECTIONS)


def sample(relation):
    return charged_terms_sampled(product(relation), rate=0.5)


def solver(relation):
    return Eigensolver(n_features=5, clip_norm=1.0, relation=relation, n_components=1, passes=5)


def shifted(relation):
    return ShiftedMoment(**terms(relation), shift=np.full(5, 100))


def run(relation):
    return SampledPasses(query=sample(relation), steps=2, factor=0.1, snapshots=(2,))


SAMPLED = events.poisson_sampled(GAUSSIAN.event, 0.5)
EXITS = {
    "release": (SYMMETRIC.event, lambda curator, of: curator.release(moment_of_charged_terms(of), SYMMETRIC)),
    "release, a product": (GAUSSIAN.event, lambda curator, of: curator.release(product(of), GAUSSIAN)),
    "release, sampled": (SAMPLED, lambda curator, of: curator.release(sample(of), GAUSSIAN)),
    "release_operator": (
        SYMMETRIC.event,
        lambda curator, of: curator.release_operator(moment_of_charged_terms(of), SYMMETRIC),
    ),
    "sample": (DRAWN.event, lambda curator, of: curator.sample(moment_of_charged_terms(of), DRAWN)),
    "sample, around a mean": (DRAWN.event, lambda curator, of: curator.sample(shifted(of), DRAWN)),
    "perturb": (SMOOTH.event, lambda curator, of: curator.perturb(solver(of), SMOOTH)),
    "sequential": (events.self_composed(SAMPLED, 2), lambda curator, of: curator.sequential(run(of), GAUSSIAN)),
    "disclose": (events.non_private(), lambda curator, of: curator.disclose(moment_of_charged_terms(of))),
}


def curated(event, relation, *, rows=CHARGED_TERMS_ROWS, content=None, kept=None):
    reservation = InMemoryReservation(
        event=event, relation=relation, content=content, key=bytes(32), steps={} if kept is None else kept
    )
    source = ArrayBlocks(rows) if isinstance(rows, np.ndarray) else rows
    return DisclosingCurator(source, reservation, i_know_this_is_not_private=True), reservation


@pytest.mark.parametrize(("event", "call"), EXITS.values(), ids=EXITS)
@pytest.mark.parametrize("charged", CHARGED_TERMS_RELATIONS)
def test_a_request_with_another_relation_than_the_charged_one_is_refused(event, call, charged):
    for relation in CHARGED_TERMS_RELATIONS:
        curator, reservation = curated(event, charged)
        if relation == charged:
            call(curator, relation)
            continue
        with pytest.raises(StepMismatch, match=f"relation {relation}, but the release was charged for {charged}"):
            call(curator, relation)
        assert reservation.steps == {}


@pytest.mark.parametrize(("event", "call"), EXITS.values(), ids=EXITS)
def test_rows_of_an_uncharged_snapshot_are_refused_without_their_digest(event, call):
    content = ArrayBlocks(CHARGED_TERMS_ROWS).content
    call(curated(event, "zero_out", content=content)[0], "zero_out")
    curator, reservation = curated(event, "zero_out", rows=CHARGED_TERMS_ROWS[1:], content=content)
    with pytest.raises(StepMismatch, match="not those of the snapshot") as refused:
        call(curator, "zero_out")
    assert reservation.steps == {}
    assert not any(
        digest[:8] in str(refused.value) for digest in (content, ArrayBlocks(CHARGED_TERMS_ROWS[1:]).content)
    )
    assert content not in repr(reservation)


def test_a_stored_answer_is_refused_to_requests_with_other_terms():
    kept: dict[int, Arrays] = {}
    curated(SYMMETRIC.event, "add_remove", kept=kept)[0].release(moment_of_charged_terms("add_remove"), SYMMETRIC)
    with pytest.raises(StepMismatch, match="relation"):
        curated(SYMMETRIC.event, "replace_one", kept=kept)[0].release(moment_of_charged_terms("add_remove"), SYMMETRIC)


def test_replaced_records_have_sqrt_2_times_the_noise_and_no_less_is_accepted():
    """Compare noise of replaced records with that of added ones; a request with less noise is refused.

    The key is fixed: the spread of 20,100 draws is within 3 % of its expectation with probability 1 - 1e-8.
    """
    rows, wide, spread = np.zeros((3, 200)), {"n_features": 200}, {}
    for relation in ("add_remove", "replace_one"):
        query = dataclasses.replace(moment_of_charged_terms(relation), **wide)
        noise = curated(SYMMETRIC.event, relation, rows=rows)[0].release(query, SYMMETRIC)
        spread[relation] = float(np.std(noise[np.triu_indices(200, 1)])) * math.sqrt(2)
    assert spread["add_remove"] == pytest.approx(4.0, rel=0.03)
    assert spread["replace_one"] == pytest.approx(4.0 * math.sqrt(2), rel=0.03)
    less = dataclasses.replace(moment_of_charged_terms("add_remove"), **wide)
    with pytest.raises(StepMismatch, match="relation"):
        curated(SYMMETRIC.event, "replace_one", rows=rows)[0].release(less, SYMMETRIC)


def test_normalized_rows_have_the_digest_of_their_snapshot():
    content, source = (
        ArrayBlocks(CHARGED_TERMS_ROWS).content,
        NormalisedBlocks(ArrayBlocks(CHARGED_TERMS_ROWS), length=1.0),
    )
    curated(SYMMETRIC.event, "add_remove", rows=source, content=content)[0].release(
        moment_of_charged_terms("add_remove"), SYMMETRIC
    )
    twice = NormalisedBlocks(source, length=0.5)
    curated(SYMMETRIC.event, "add_remove", rows=twice, content=content)[0].release(
        moment_of_charged_terms("add_remove"), SYMMETRIC
    )
    other = NormalisedBlocks(ArrayBlocks(CHARGED_TERMS_ROWS[1:]), length=1.0)
    with pytest.raises(StepMismatch, match="snapshot"):
        curated(SYMMETRIC.event, "add_remove", rows=other, content=content)[0].release(
            moment_of_charged_terms("add_remove"), SYMMETRIC
        )


@pytest.mark.parametrize(
    "change", [{"relation": "replace_one"}, {"bits": 9}, {"clip_norm": 2.0}, {"n_features": 6}], ids=str
)
@pytest.mark.parametrize(
    "wrapped",
    [
        sample("zero_out"),
        LocallyNoised.of(moment_of_charged_terms("zero_out")),
        UnroundedProduct.of(moment_of_charged_terms("zero_out"), np.eye(5, 2, dtype=np.int64)),
    ],
    ids=lambda query: query.name,
)
def test_a_wrapped_query_has_the_public_terms_of_its_wrapper(wrapped, change):
    """Change a public term of the outer query of a wrapped query: it must be refused.

    Noise follows the outer query's grid, so a coarser outer grid would add too little noise to the inner query.
    """
    with pytest.raises(InvalidInput, match=f"differ in {next(iter(change))}"):
        dataclasses.replace(wrapped, **change)


def test_local_reports_are_charged_under_the_relation_of_their_budget():
    reports, law = LocallyNoised.of(moment_of_charged_terms("zero_out")), SYMMETRIC
    with pytest.raises(StepMismatch, match="relation zero_out, but the release was charged for replace_one"):
        Curator(ArrayBlocks(CHARGED_TERMS_ROWS), InMemoryReservation(event=law.event, relation="replace_one")).release(
            reports, law
        )
    assert curated(law.event, "zero_out")[0].release(reports, law).shape == (5, 5)
