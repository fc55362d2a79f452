"""Queries for each row of the gate's table of sensitivities, to be attacked in the norms that the row states."""

import dataclasses
from typing import cast

import numpy as np

from dpca_tasks.accounting.factorisation import Weights
from dpca_tasks.layouts import unpack_cube, unpack_symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import request
from dpca_tasks.queries.counts import NormHistogram, RejectedRecords
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.mapped_moment import FIRST_CENTRED, NEXT, MappedMoment, norm_of
from dpca_tasks.queries.poisson_sampled import PoissonSampled, sampled
from dpca_tasks.queries.recentred_moment import CapturedEnergies, ShiftedMoment, on_shift_grid
from dpca_tasks.queries.rounded_product import ClippedProduct, MomentProduct, ReplacedProduct, on_direction_grid
from dpca_tasks.queries.second_moment import CentredMoment, RecordMean, SecondMoment
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.queries.words import PointTriples, WordPairs, WordTriples

D = 4
RELATIONS = ("add_remove", "zero_out", "replace_one")
HALVES = np.array([[0.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5**0.5, -(0.5**0.5)]])
"""Orthonormal; the scores of the shortest rows of a grid are just large enough to be rounded away from 0."""


def facts(relation, bits):
    return {"n_features": D, "clip_norm": 1.0, "relation": relation, "bits": bits}


def second_moment(relation, bits):
    return SecondMoment(**facts(relation, bits))


def centred_moment(relation, bits):
    return CentredMoment(**facts(relation, bits))


def record_mean(relation, bits):
    return RecordMean(**facts(relation, bits))


def moment_product(relation, bits):
    directions = np.linalg.qr(np.random.default_rng(bits).standard_normal((D, 2)))[0]
    return MomentProduct(directions=on_direction_grid(directions), **facts(relation, bits))


def product_of_halves(relation, bits):
    return MomentProduct(directions=on_direction_grid(HALVES), **facts(relation, bits))


def replaced_product(relation, bits):
    return ReplacedProduct(directions=moment_product(relation, bits).directions, **facts(relation, bits))


def replaced_product_of_halves(relation, bits):
    return ReplacedProduct(directions=on_direction_grid(HALVES), **facts(relation, bits))


def replaced_product_of_one(relation, bits):
    return ReplacedProduct(directions=on_direction_grid(np.full((D, 1), 0.5)), **facts(relation, bits))


def clipped_product(relation, bits):
    return ClippedProduct(
        directions=moment_product(relation, bits).directions, message_clip=0.25, **facts(relation, bits)
    )


def barely_clipped_product(relation, bits):
    return ClippedProduct(directions=on_direction_grid(HALVES), message_clip=0.7, **facts(relation, bits))


def half_of(query):
    """Return a query over a sample of half of the records, with a fixed coin key.

    Only the last record differs between neighbors, so the coins of all other records are equal.
    """
    made = cast(PoissonSampled, sampled(query, rate=0.5))
    return dataclasses.replace(made, coin_key=subkey(bytes(32), label="coins", info=bytes([query.bits])))


def sampled_moment(relation, bits):
    return half_of(second_moment(relation, bits))


def sampled_product(relation, bits):
    return half_of(moment_product(relation, bits))


def sampled_replaced(relation, bits):
    return half_of(replaced_product(relation, bits))


def sample_of_all(relation, bits):
    made = sampled(record_mean(relation, bits), rate=1.0, halved=True)
    return dataclasses.replace(cast(PoissonSampled, made), coin_key=subkey(bytes(32), label="coins", info=b""))


def shifted_moment(relation, bits):
    """Return the moment around a mean along an axis, of the largest norm; many tried rows are along axes too."""
    return ShiftedMoment(shift=on_shift_grid(np.eye(D)[0]), **facts(relation, bits))


def shifted_along_all(relation, bits):
    return ShiftedMoment(shift=on_shift_grid(np.full(D, -0.5)), **facts(relation, bits))


def map_of(directions, kept):
    """Return the grid matrices of the map ``I - U diag(1 - t) U^T``, with ``directions`` U and ``kept`` t."""
    both = {"directions": directions, "reductions": directions * (1.0 - np.array(kept))}
    return {name: np.rint(matrix * 2.0**12).astype(np.int64) for name, matrix in both.items()}


def mapped(relation, bits, kept, **others):
    """Return a moment under a map that shrinks some directions to ``kept``; images are clipped to a third."""
    rotation = np.linalg.qr(np.random.default_rng(bits).standard_normal((D, D)))[0]
    terms = {"norm": norm_of(1 / 3), **map_of(rotation[:, : len(kept)], kept), **others}
    return MappedMoment(**terms, **facts(relation, bits))


def mapped_moment(relation, bits):
    return mapped(relation, bits, [0.1, 0.5])


def unmapped_moment(relation, bits):
    """Return the moment of a release's first round: no map, but constants for count and mean."""
    return mapped(relation, bits, [], norm=norm_of(1.0), part=NEXT)


def unmapped_centred(relation, bits):
    return mapped(relation, bits, [], norm=norm_of(1.0), part=FIRST_CENTRED)


def mapped_around_a_mean(relation, bits):
    """Return a moment under a map that changes nothing along the mean; many tried rows are along other axes."""
    directions = map_of(np.eye(D)[:, 1:3], [0.5, 1 / 64])
    return mapped(relation, bits, [], shift=on_shift_grid(np.eye(D)[0]), part=NEXT, **directions)


def mapped_around_all(relation, bits):
    """Return a moment under a very asymmetric map that lengthens records, around a mean of many features."""
    directions = {"directions": np.full((D, 1), 2**11), "reductions": np.eye(D, dtype=np.int64)[:, :1] << 12}
    return mapped(relation, bits, [], shift=on_shift_grid(np.full(D, -0.5)), norm=norm_of(1.0), **directions)


def norm_histogram(relation, bits):
    return NormHistogram(edges=np.array([0.25, 0.5, 1.0, 2.0]), **facts(relation, bits))


def rejected_records(relation, bits):
    return RejectedRecords(**facts(relation, bits))


def captured_energies(relation, bits):
    return CapturedEnergies(directions=moment_product(relation, bits).directions, **facts(relation, bits))


def energies_of_halves(relation, bits):
    return CapturedEnergies(directions=on_direction_grid(HALVES), **facts(relation, bits))


def energies_of_all(relation, bits):
    """Return captured energies along directions far from orthonormal, on which all records have components."""
    return CapturedEnergies(directions=on_direction_grid(np.ones((D, 2))), **facts(relation, bits))


def energies_around_a_mean(relation, bits):
    shift = on_shift_grid(np.eye(D)[0])
    return CapturedEnergies(directions=on_direction_grid(np.eye(D)[:, :2]), shift=shift, **facts(relation, bits))


def word_facts(relation, bits):
    return {"n_features": D, "relation": relation, "bits": bits, "words_at_most": 9}


def word_pairs(relation, bits):
    return WordPairs(**word_facts(relation, bits))


def word_triples(relation, bits):
    """Return word triples along directions with one row of norm 1, so that a core attains its bound."""
    return WordTriples(directions=on_direction_grid(HALVES[::-1]), **word_facts(relation, bits))


def triples_of_short_rows(relation, bits):
    """Return word triples along directions with short rows, so that two cores differ by less than sqrt 2."""
    return WordTriples(directions=on_direction_grid(np.full((D, 1), 0.5)), **word_facts(relation, bits))


def triples_of_long_directions(relation, bits):
    """Return word triples along directions with some rows longer than 1, for which cores are scaled down."""
    return WordTriples(directions=on_direction_grid(np.ones((D, 2))), **word_facts(relation, bits))


def point_triples(relation, bits):
    terms = {"score_norm": 1.5, "noise_variance": 0.2, "n_features": D, "relation": relation, "bits": bits}
    return PointTriples(directions=on_direction_grid(HALVES), **terms)


def point_triples_of_one(relation, bits):
    """Return point triples along one direction, for which the longest points do not move the sum the most.

    The noise variance of 0.45 has this effect.
    """
    terms = {"score_norm": 1.0, "noise_variance": 0.45, "n_features": D, "relation": relation, "bits": bits}
    return PointTriples(directions=on_direction_grid(np.eye(D)[:, :1]), **terms)


PLAIN = Weights(strategy="sqrt", weights=(4, 2, 2), bits=2)
SIGNED = Weights(strategy="window", weights=(4, 2, -1), bits=2, window=2)


def streamed(moment, weights, tick):
    """Return the query of a stream's tick for records whose arrival is unknown.

    Such records count as arrived at tick 1, whose weight enters the joint bound.
    """
    return StreamedMoment.of_moment(moment, weights=weights, horizon=3, tick=tick, arrivals=(0,) * tick)


def streamed_moment(relation, bits):
    return streamed(second_moment(relation, min(bits, 13)), PLAIN, 1)


def streamed_centred(relation, bits):
    return streamed(centred_moment(relation, min(bits, 13)), PLAIN, 2)


def streamed_with_signs(relation, bits):
    return streamed(second_moment(relation, min(bits, 13)), SIGNED, 3)


def streamed_centred_with_signs(relation, bits):
    return streamed(centred_moment(relation, min(bits, 13)), SIGNED, 1)


def streamed_map(relation, bits):
    return streamed(mapped_moment(relation, min(bits, 13)), PLAIN, 2)


def streamed_around_a_mean(relation, bits):
    return streamed(mapped_around_a_mean(relation, min(bits, 13)), PLAIN, 1)


def streamed_map_with_signs(relation, bits):
    return streamed(mapped_moment(relation, min(bits, 13)), SIGNED, 3)


def streamed_around_a_mean_with_signs(relation, bits):
    return streamed(mapped_around_a_mean(relation, min(bits, 13)), SIGNED, 1)


class Report(LocallyNoised):
    """A local report without its noise, so that a record's contribution can be compared with the sensitivity."""

    def add(self, block, total):
        self.moment.add(block, total)


def local_report(relation, bits):
    return Report.of(centred_moment(relation, bits))


def local_report_of_rows(relation, bits):
    return Report.of(second_moment(relation, bits))


def full(query, packed):
    values, layout = packed / query.steps_per_unit, query.layout
    if layout.kind == "cube":
        return unpack_cube(values, layout.order)
    return unpack_symmetric(values, layout.order) if layout.kind == "symmetric" else values


def widest_scores(query, packed):
    """Return the length of the interval that spans 0 and all changes of scores, for the worst number of directions."""
    values = np.linalg.eigvalsh(query.matrix(packed))
    least, most = np.cumsum(values), np.cumsum(values[::-1])
    return max(max(high, 0.0) - min(low, 0.0) for low, high in zip(least, most, strict=True))


NORMS = {
    "scores": widest_scores,
    "l2": lambda query, packed: np.linalg.norm(full(query, packed)),
    "l1": lambda query, packed: np.abs(packed / query.steps_per_unit).sum(),
    "nuclear": lambda query, packed: np.abs(np.linalg.eigvalsh(full(query, packed))).sum(),
}
BUILDERS = (
    second_moment,
    centred_moment,
    norm_histogram,
    rejected_records,
    record_mean,
    sample_of_all,
    moment_product,
    product_of_halves,
    sampled_moment,
    sampled_product,
    sampled_replaced,
    local_report,
    local_report_of_rows,
    replaced_product,
    replaced_product_of_halves,
    replaced_product_of_one,
    clipped_product,
    barely_clipped_product,
    shifted_moment,
    shifted_along_all,
    mapped_moment,
    unmapped_moment,
    unmapped_centred,
    mapped_around_a_mean,
    mapped_around_all,
    captured_energies,
    energies_of_halves,
    energies_of_all,
    energies_around_a_mean,
    word_pairs,
    word_triples,
    triples_of_short_rows,
    triples_of_long_directions,
    point_triples,
    point_triples_of_one,
    streamed_moment,
    streamed_centred,
    streamed_with_signs,
    streamed_centred_with_signs,
    streamed_map,
    streamed_around_a_mean,
    streamed_map_with_signs,
    streamed_around_a_mean_with_signs,
)
OF_WORDS = (word_pairs, word_triples, triples_of_short_rows, triples_of_long_directions)
"""Queries over counts of words."""


def norms_of(build):
    """Return the norms in which the gate's table states the sensitivity of a query."""
    kind = build("zero_out", 12).kind
    return tuple(norm for norm in NORMS if any((row.query, row.norm) == (kind, norm) for row in request.TABLE))


TABLE = {build: norms_of(build) for build in BUILDERS}
"""The norms of every query's rows in the package's table of sensitivities."""
SAMPLED = (sampled_moment, sampled_product, sampled_replaced, sample_of_all)
"""A sampled record is replaced through the empty one, so these queries have the sensitivity of an emptied record."""


def bounds_of(build):
    """Return the relations that a query supports."""
    return RELATIONS[1:] if build in (local_report, local_report_of_rows) else RELATIONS
