"""Family of matrix completion, with the advice of its dry run.

A release consists of factors and offsets of items, with which users predict their own ratings. A dry run recommends
the mechanism with the best expected predictions and gives the reason. Both follow from public facts.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from scipy import sparse

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours
from dpca_tasks.errors import DpcaError, InvalidInput, Refused
from dpca_tasks.forecast.rating_forecast import SIGNAL, Forecast, forecast
from dpca_tasks.mechanisms.base import ItemFactors, Mechanism, PrivacyTarget
from dpca_tasks.mechanisms.completion import MECHANISMS, REFERENCES
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.records.blocks import ArrayBlocks
from flows.families.base import (
    Family,
    PlannedRelease,
    build_mechanism,
    check_ratings,
    one_row_a_user,
    records_facts,
    release_facts,
)
from flows.families.columns import Columns
from flows.requests import CompletionRequest
from storage.datasets.catalog import Entry
from storage.datasets.content_digest import Manifest


def advised(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> list[Forecast]:
    """Return the forecasts of the mechanisms that accept a request with default settings, lowest error first."""
    accepted = []
    for found in forecast(problem, target, rank=rank, signal=signal):
        with suppress(DpcaError):
            MECHANISMS[found.mechanism](rank=rank).plan(problem, target)
            accepted.append(found)
    return accepted


def advice_facts(
    problem: RatingsProblem, target: PrivacyTarget, *, rank: int, signal: float | None = None
) -> Mapping[str, Any]:
    """Return the advice of a dry run.

    It consists of a sentence, the expected error of each mechanism, and the share of the signal that each mechanism is
    expected to find.
    """
    ranked = advised(problem, target, rank=rank, signal=signal)
    return {
        "advice": _sentence(ranked, problem, signal=signal),
        "expected_errors": {each.mechanism: round(each.error, 4) for each in ranked},
        "expected_signal_found": {each.mechanism: round(each.captured, 4) for each in ranked},
    }


def _sentence(ranked: list[Forecast], problem: RatingsProblem, *, signal: float | None) -> str:
    if not problem.records_declared:
        return "no number of users is declared, so the noise cannot be compared with it; ingest with --records-at-most."
    if not ranked:
        return "dpals, one_shot and item_means all refuse this request; name one of them to see what to change."
    best, *others = ranked
    users = f"{problem.records_at_most:,} users, each with {problem.most} ratings"
    reason = f"with {users}, it is expected to find {best.captured:.0%} of the signal of factors"
    if best.mechanism == "item_means":
        most = max((each.captured for each in others), default=0.0)
        reason = f"with {users}, factors would find only {most:.0%} of their signal, less than their noise costs"
    rest = "".join(f", {each.mechanism} {each.error:.3g}" for each in others)
    taken, part = "declared" if signal is not None else "assumed", SIGNAL if signal is None else signal
    return (
        f"use {best.mechanism}: {reason}; expected RMSE {best.error:.3g}{rest}. Assumptions: "
        "items are rated alike, the std of ratings without offsets is a quarter of their range, and factors "
        f"explain {part:.0%} of their variance ({taken})."
    )


AUTO = "auto"
"""Value of ``mechanism`` in a request whose mechanism is chosen from public facts."""


def build_audited(name: str) -> Mechanism[ItemFactors]:
    """Build a mechanism for the audit, with one factor."""
    kind = MECHANISMS[name]
    mechanism: Mechanism[ItemFactors] = kind(rank=1, **kind.audited_with)
    return mechanism


def audited_problem(relation: Relation) -> RatingsProblem:
    """Return a problem with two items and one counted rating per user."""
    return RatingsProblem(n_features=2, low=-1.0, high=1.0, ratings_per_user=1, relation=relation)


def neighbours_of(name: str, problem: RatingsProblem) -> tuple[Neighbours, ...]:
    """Return a pair of datasets whose differing user rates one item far outside the range.

    For offsets, the worst replacement is the opposite rating of the same item. For statistics of one factor, this
    replacement would change nothing, because the user's factor changes sign too. The replacing user therefore rates
    another item.
    """
    bystander, mine = [[0.5, 0.0]], [[5.0, 0.0]]
    other = [[-5.0, 0.0]] if name == "item_means" else [[0.0, 5.0]]
    there = {"add_remove": [], "zero_out": [[0.0, 0.0]], "replace_one": other}[problem.relation]

    def source(rows: list[list[float]]) -> ArrayBlocks:
        return ArrayBlocks(sparse.csr_array(np.array(bystander + rows)), block_records=1)

    return (Neighbours(name="one user", left=source(mine), right=source(there)),)


def of_item(_pair: Neighbours, _problem: RatingsProblem) -> Callable[[ItemFactors], float]:
    """Return the statistic of the audit: the offset of the rated item, or the absolute value of its factor."""

    def read(result: ItemFactors) -> float:
        return float(result.offsets[0]) if result.factors is None else float(np.abs(result.factors[0, 0]))

    return read


class CompletionFamily(Family[CompletionRequest, ItemFactors]):
    """Release family whose artifacts are factors and offsets of items."""

    name = CompletionRequest.family
    request = CompletionRequest
    terms = RatingsProblem
    mechanisms = MECHANISMS
    references = REFERENCES
    artifact = ItemEmbeddings
    audit = AuditSubject(
        names=tuple(MECHANISMS),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=of_item,
    )

    def one_row_rule(self, request: CompletionRequest) -> str | None:
        """Return the message that ratings need one row for each user."""
        return one_row_a_user(request)

    def build(self, request: CompletionRequest) -> Mechanism[ItemFactors]:
        """Build the mechanism that a request names."""
        return build_mechanism(self, request.mechanism, request.settings, rank=int(request.rank))

    def check_ingest(self, request: CompletionRequest, manifest: Callable[[], Manifest]) -> None:
        """Refuse a dataset whose ratings were added up at ingest, or whose zeros were dropped."""
        check_ratings(manifest(), *range_of(request.ratings_between))

    def resolved(
        self, request: CompletionRequest, snapshot: Entry, *, relation: Relation, target: PrivacyTarget
    ) -> CompletionRequest:
        """Return a request with its mechanism named; ``auto`` becomes the mechanism with the lowest expected error."""
        if request.mechanism != AUTO:
            return request
        if request.settings:
            raise InvalidInput(
                "mechanism=auto accepts no settings, because settings belong to one mechanism; leave "
                "them out, or name a mechanism."
            )
        problem = self.problem(request, snapshot, relation=relation)
        if not problem.records_declared:
            raise InvalidInput(
                "mechanism=auto compares the noise with the number of users, but none is declared; "
                "ingest with --records-at-most, or name a mechanism."
            )
        for found in advised(problem, target, rank=request.rank, signal=request.signal):
            return dataclasses.replace(request, mechanism=found.mechanism)
        raise Refused("mechanism=auto found no mechanism that accepts this request; name one to see what to change.")

    def problem(self, request: CompletionRequest, snapshot: Entry, *, relation: Relation) -> RatingsProblem:
        """Return the public facts of a request on a snapshot."""
        low, high = range_of(request.ratings_between)
        return RatingsProblem(
            relation=relation,
            **records_facts(snapshot),
            n_features=snapshot.n_features,
            low=low,
            high=high,
            ratings_per_user=request.ratings_per_user,
        )

    def requested(self, request: CompletionRequest) -> Sequence[Any]:
        """Return the options on ratings that determine the release."""
        requested: list[Any] = [*range_of(request.ratings_between), request.ratings_per_user]
        if request.mechanism == AUTO:
            requested += [f"rank={request.rank}", f"signal={request.signal}"]
        return requested

    def facts(self, planned: PlannedRelease[CompletionRequest]) -> Mapping[str, Any]:
        """Return the facts of a dry run on ratings, with its advice."""
        request = planned.request
        return {"rank": request.rank, **self.published_facts(planned), **self._advice(planned)}

    def _advice(self, planned: PlannedRelease[CompletionRequest]) -> Mapping[str, Any]:
        plan, request = planned.plan, planned.request
        if plan.target.i_know_this_is_not_private:
            return {}
        return advice_facts(plan.problem, plan.target, rank=request.rank, signal=request.signal)

    def published_facts(self, planned: PlannedRelease[CompletionRequest]) -> Mapping[str, Any]:
        """Return the range of ratings and the number of ratings per user."""
        request = planned.request
        return {
            "ratings_between": list(range_of(request.ratings_between)),
            "ratings_per_user": request.ratings_per_user,
        }

    def state(
        self,
        planned: PlannedRelease[CompletionRequest],
        result: ItemFactors,
        *,
        release_id: str,
        columns: Columns,
    ) -> ItemEmbeddings:
        """Build the artifact of factors and offsets with their public facts."""
        low, high = range_of(planned.request.ratings_between)
        facts = release_facts(self, planned, release_id=release_id)
        warnings = {"warnings": list(planned.plan.warnings)} if planned.plan.warnings else {}
        return ItemEmbeddings(
            factors=result.factors,
            offsets=result.offsets,
            counts=result.counts,
            low=low,
            high=high,
            manifest={**columns.named, **warnings, **facts, "user_step": dict(result.user_step)},
        )


def range_of(text: str) -> tuple[float, float]:
    """Read a range ``A:B``.

    Raises
    ------
    InvalidInput
        When the text is not a range, or the range is empty.
    """
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise InvalidInput(f"ratings_between={text!r} must be a range A:B of two numbers with A below B, such as 1:5.")
    return ends


COMPLETION = CompletionFamily()
