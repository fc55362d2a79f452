"""The gate between rows and released answers: only listed classes pass, and each reserved step has one answer.

The gate's tables list exactly the queries and distributions that exist. Noise is bound to the query.
"""

import dataclasses
import inspect
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, StepMismatch, StepTaken
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.distributions import Cube, Gaussian, JointGaussian, Symmetric, UpperTriangle
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import gate
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.request import part_scales_in_steps, scale_in_steps
from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.rating_queries import ITEMS, averages, statistics, totals

ROWS = np.arange(12.0).reshape(4, 3) / 10
FACTS: dict[str, Any] = {"n_features": 3, "clip_norm": 1.0, "relation": "zero_out", "bits": 10}
MOMENT = SecondMoment(**FACTS)
LAW = Symmetric(noise_multiplier=4.0)
KEYS = {label: subkey(bytes(32), label=label, info=b"") for label in ("release coins", "step coins", "noise")}
SECRETS = StepSecrets(
    release_coins=KEYS["release coins"], step_coins=KEYS["step coins"], noise=KEYS["noise"], noise_scale=7.0
)


def listed_methods():
    """Return the rows of the table in the gate's docstring, as method name to the texts of the other columns."""
    lines = gate.__doc__.split("\n")
    bounds = [at for at, line in enumerate(lines) if line.startswith("====")]
    edges = [match.span() for match in re.finditer("=+", lines[bounds[0]])]
    found: dict[str, list[str]] = {}
    for line in lines[bounds[1] + 1 : bounds[2]]:
        name, *others = (line[first : last + 2].strip() for first, last in edges)
        at = name.strip("`") or list(found)[-1]  # a line of the table without a name continues the previous row
        found[at] = [f"{old} {new}".strip() for old, new in zip(found.get(at, [""] * 3), others, strict=True)]
    return found


def test_the_table_in_the_gates_docstring_has_exactly_the_releasing_methods():
    public = {
        name
        for kind in (Curator, DisclosingCurator)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "with_stored_inputs"
    }
    assert set(listed_methods()) == public
    assert all(cell for row in listed_methods().values() for cell in row)


def test_the_proofs_that_the_table_names_exist():
    named = {name for row in listed_methods().values() for name in re.findall("``([A-Za-z_.]+)``", row[2])}
    named -= set(listed_methods())
    assert len(named) == 7
    for name in named:
        assert import_module(f"dpca_tasks.{name}").__doc__, name


@pytest.mark.parametrize(
    ("query", "law"),
    [
        (MOMENT, Gaussian(noise_multiplier=4.0)),
        (MOMENT, Cube(noise_multiplier=4.0)),
        (LocallyNoised.of(MOMENT), UpperTriangle(noise_multiplier=4.0)),
    ],
    ids=["layout", "no query", "reports have a noise of their own"],
)
def test_a_pair_without_a_row_is_refused(query, law):
    reservation = InMemoryReservation(event=law.event, relation="zero_out")
    with pytest.raises(InvalidInput, match=r"no sensitivity of the statistic .* is proved"):
        Curator(ArrayBlocks(ROWS), reservation).release(query, law)
    assert reservation.steps == {}


def test_a_query_of_another_version_is_refused():
    class Next(SecondMoment):
        version: ClassVar[int] = 2

    with pytest.raises(InvalidInput, match="second_moment 2 is proved"):
        Curator(ArrayBlocks(ROWS), InMemoryReservation(event=LAW.event, relation="zero_out")).release(
            Next(**FACTS), LAW
        )


def test_a_query_gets_only_the_secrets_that_it_declares():
    product = MomentProduct(**FACTS, directions=np.eye(3, 1, dtype=np.int64))
    sample: Any = PoissonSampled(**FACTS, query=product, rate=0.5).with_secrets(SECRETS)
    reports: Any = LocallyNoised.of(MOMENT).with_secrets(SECRETS)
    assert MOMENT.with_secrets(SECRETS) is MOMENT
    assert (sample.coin_key, sample.noises_itself) == (SECRETS.step_coins, False)
    assert (reports.noise_key, reports.noise_std, reports.noises_itself) == (SECRETS.noise, 7.0, True)
    assert not any(str(key.secret) in repr((sample, reports, SECRETS)) for key in KEYS.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curious(SecondMoment):
    """A query that records the secrets which the gate passes to it."""

    given: list[StepSecrets] = field(default_factory=list, repr=False)

    def with_secrets(self, secrets):
        self.given.append(secrets)
        return self

    def digest(self):
        return b""


def test_release_coins_are_shared_by_all_steps_and_other_secrets_are_not():
    event = {"name": "self_composed", "event": dict(LAW.event), "count": 2}
    curator, query = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=event, relation="zero_out")), Curious(**FACTS)
    for _ in range(2):
        curator.release(query, LAW)
    first, second = query.given
    assert first.release_coins.secret == second.release_coins.secret
    keys = {key.secret for given in (first, second) for key in (given.release_coins, given.step_coins, given.noise)}
    assert len(keys) == 5


def test_the_privacy_package_never_tests_the_class_of_a_query_or_distribution():
    for path in Path(gate.__file__).parent.rglob("*.py"):
        assert "isinstance(" not in path.read_text(), path.name
        assert "__name__" not in path.read_text().replace("type(error).__name__", ""), path.name


class Raced(InMemoryReservation):
    """A reservation that simulates another process which writes between this process's read and write.

    The reservation reports no stored step when asked, but does not overwrite an answer that is already stored.
    """

    def kept(self, step, /):
        return None


TOTALS = totals("zero_out")
RATINGS = np.where(np.random.default_rng(1).random((9, ITEMS)) < 0.5, 3.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "call", "law"),
    [
        (ROWS, lambda curator, law: curator.release(MOMENT, law), LAW),
        (RATINGS, lambda curator, law: curator.release_parts(TOTALS, law)["sums"], JointGaussian(noise_multiplier=4.0)),
    ],
    ids=["release", "release_parts"],
)
def test_the_released_answer_is_the_one_stored_first(rows, call, law):
    first = InMemoryReservation(event=law.event, relation="zero_out", key=bytes(32))
    stored = call(Curator(ArrayBlocks(rows), first), law)
    other = {name: value + 1 if name == gate.ANSWER else value for name, value in first.steps[0].items()}
    raced = Raced(event=law.event, relation="zero_out", key=bytes(32), steps={0: other})
    answer = call(Curator(ArrayBlocks(rows), raced), law)
    assert not np.array_equal(answer, stored)
    reading = InMemoryReservation(event=law.event, relation="zero_out", key=bytes(32), steps={0: other})
    np.testing.assert_array_equal(answer, call(Curator(ArrayBlocks(rows), reading), law))


def test_a_step_answered_for_another_request_is_refused():
    first = InMemoryReservation(event=LAW.event, relation="zero_out", key=bytes(32))
    Curator(ArrayBlocks(ROWS), first).release(MOMENT, LAW)
    before = {name: value.copy() for name, value in first.steps[0].items()}
    raced = Raced(event=LAW.event, relation="zero_out", key=bytes(32), steps=first.steps)
    with pytest.raises(StepMismatch, match="another request"):
        Curator(ArrayBlocks(ROWS), raced).release(dataclasses.replace(MOMENT, bits=9), LAW)
    curator = Curator(ArrayBlocks(ROWS), raced)
    with pytest.raises(StepTaken, match="another process"):
        curator.release(curator.with_stored_inputs(dataclasses.replace(MOMENT, bits=9)), LAW)
    for name, value in before.items():
        np.testing.assert_array_equal(first.steps[0][name], value)


def test_the_released_tile_is_the_one_stored_first():
    raced = Raced(event=LAW.event, relation="zero_out", key=bytes(32))
    passed = gate.Gate(ArrayBlocks(ROWS), raced)
    request = passed.admit(MOMENT, LAW, scale_in_steps)
    first = passed.load_or_compute_tile(request, 0, lambda: np.array([1, 2]))
    again = passed.load_or_compute_tile(request, 0, lambda: np.array([3, 4]))
    assert first.tolist() == again.tolist() == [1, 2]
    other = passed.admit(dataclasses.replace(MOMENT, bits=9), LAW, scale_in_steps)
    with pytest.raises(StepMismatch, match="a tile of step 0"):
        passed.load_or_compute_tile(other, 0, lambda: np.array([1, 2]))


JOINT = {
    f"{name} {relation} {share}": query
    for relation in ("add_remove", "zero_out", "replace_one")
    for share in (0.05, 0.5, 0.9)
    for name, query in {
        "totals": totals(relation, count_share=share),
        "averages": averages(relation, count_share=share),
        "statistics": statistics(relation, outer_share=share, bits=6),
        "statistics with a gram": statistics(relation, outer_share=share, gram_share=0.09, bits=6),
    }.items()
}


@pytest.mark.parametrize("case", JOINT)
@pytest.mark.parametrize("multiplier", [0.5, 4.0, 31.0])
def test_the_noise_of_all_parts_together_spends_what_one_gaussian_is_charged(case, multiplier):
    """The parts of a joint query must together spend the ``mu^2 = 1 / multiplier^2`` of the charged Gaussian.

    Each part spends (bound / std)^2, which must be its share.
    """
    query = JOINT[case]
    scales = part_scales_in_steps(query, JointGaussian(noise_multiplier=multiplier))
    spent = [
        (part.bound * part.steps_per_unit / scale) ** 2
        for part, scale in zip(query.parts.values(), scales, strict=True)
    ]
    assert sum(spent) <= multiplier**-2
    for part, each in zip(query.parts.values(), spent, strict=True):
        assert (1 - 1e-12) * part.share <= each * multiplier**2 <= part.share


CURATOR_ROWS = np.random.default_rng(2).standard_normal((50, 5)) / 3
QUERY = SecondMoment(n_features=5, clip_norm=1.0, relation="add_remove", bits=12)
KEY = bytes(range(32))


def reserved(event=LAW.event, *, key=KEY, **terms):
    return InMemoryReservation(event=event, key=key, **terms)


def noise_of(query=QUERY, law=LAW, rows=CURATOR_ROWS, *, key=KEY, skip=0):
    """Return the noise of a release, which is the answer minus the exact sum, in units of the clip norm."""
    event = events.self_composed(law.event, skip + 1)
    curator = Curator(ArrayBlocks(rows), reserved(event, key=key, relation=query.relation))
    for _ in range(skip + 1):
        noisy = curator.release(query, law)
    exact = unpack_symmetric(exact_sum(ArrayBlocks(rows), query) / query.steps_per_unit, 5)
    return noisy / query.unit - exact


def test_the_answer_is_the_exact_sum_plus_noise_of_the_stated_size():
    noise = noise_of()
    # one of 15 draws is beyond 6 std with probability 3e-8 over keys; the key is fixed
    assert np.abs(noise).max() < 6 * 4.0
    assert np.abs(noise).max() > 0.5


def test_equal_requests_under_one_key_have_equal_noise():
    np.testing.assert_array_equal(noise_of(), noise_of())


@pytest.mark.parametrize(
    "change",
    [
        {"key": bytes(32)},
        {"rows": np.vstack([CURATOR_ROWS, np.zeros(5)])},
        {"rows": CURATOR_ROWS[::-1]},
        {"law": Symmetric(noise_multiplier=4.5)},
        {"query": dataclasses.replace(QUERY, clip_norm=2.0)},
        {"query": dataclasses.replace(QUERY, bits=11)},
        {"query": dataclasses.replace(QUERY, relation="zero_out")},
        {"skip": 1},
    ],
    ids=str,
)
def test_any_change_of_the_request_gives_unrelated_noise(change):
    """Change one property of a request: its noise must be unrelated.

    A shared noise stream would give a correlation of 1; unrelated noise exceeds 0.9 over 15 draws with probability
    below 1e-5.
    """
    upper = np.triu_indices(5)
    assert abs(np.corrcoef(noise_of()[upper], noise_of(**change)[upper])[0, 1]) < 0.9


def product_of(directions):
    return MomentProduct(
        n_features=5, clip_norm=1.0, relation="add_remove", bits=12, directions=on_direction_grid(directions)
    )


def product_noise(query):
    law = Gaussian(noise_multiplier=4.0)
    noisy = Curator(ArrayBlocks(CURATOR_ROWS), reserved(law.event)).release(query, law)
    return noisy - exact_sum(ArrayBlocks(CURATOR_ROWS), query) / query.steps_per_unit


def test_any_change_of_the_directions_gives_unrelated_noise():
    """Change one entry of the directions by one grid step: the noise must be unrelated.

    Unrelated noise has a correlation above 0.9 over 10 draws with probability 4e-4.
    """
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]
    moved = directions.copy()
    moved[0, 0] += 2.0**-24
    noise = product_noise(product_of(directions))
    np.testing.assert_array_equal(noise, product_noise(product_of(directions)))
    assert abs(np.corrcoef(noise, product_noise(product_of(moved)))[0, 1]) < 0.9


def test_blocks_are_a_performance_setting():
    answers = [
        Curator(ArrayBlocks(CURATOR_ROWS, block_records=size), reserved()).release(QUERY, LAW) for size in (1, 7, 100)
    ]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_a_step_that_was_not_reserved_is_refused():
    curator = Curator(ArrayBlocks(CURATOR_ROWS), reserved())
    curator.release(QUERY, LAW)
    with pytest.raises(StepMismatch, match="not reserved"):
        curator.release(QUERY, LAW)


def test_a_step_with_less_noise_than_reserved_is_refused():
    with pytest.raises(StepMismatch, match="a different event"):
        Curator(ArrayBlocks(CURATOR_ROWS), reserved()).release(QUERY, Symmetric(noise_multiplier=3.999))


def test_a_distribution_for_another_layout_is_refused():
    with pytest.raises(InvalidInput, match="no sensitivity of the statistic"):
        Curator(ArrayBlocks(CURATOR_ROWS), reserved()).release(QUERY, Gaussian(noise_multiplier=4.0))


def test_noise_too_large_for_the_grid_is_refused():
    law = Symmetric(noise_multiplier=2.0**20)
    with pytest.raises(InvalidInput, match="grid steps"):
        Curator(ArrayBlocks(CURATOR_ROWS), reserved(law.event)).release(QUERY, law)


def test_a_stored_step_is_read_back_without_the_rows():
    reservation = reserved()
    answer = Curator(ArrayBlocks(CURATOR_ROWS), reservation).release(QUERY, LAW)

    class NoRows(ArrayBlocks):
        def read(self, block, /):
            raise AssertionError("the rows were read again")

    np.testing.assert_array_equal(Curator(NoRows(CURATOR_ROWS), reservation).release(QUERY, LAW), answer)


def test_a_second_request_in_an_answered_step_is_refused():
    reservation = reserved()
    Curator(ArrayBlocks(CURATOR_ROWS), reservation).release(QUERY, LAW)
    for rows, query in ((CURATOR_ROWS[:-1], QUERY), (CURATOR_ROWS, dataclasses.replace(QUERY, clip_norm=2.0))):
        with pytest.raises(StepMismatch, match="another request"):
            Curator(ArrayBlocks(rows), reservation).release(query, LAW)


def test_a_resumed_step_continues_from_the_stored_public_inputs():
    law = Gaussian(noise_multiplier=4.0)
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]

    def product(by):
        moved = on_direction_grid(directions + by)
        return MomentProduct(n_features=5, clip_norm=1.0, relation="add_remove", bits=12, directions=moved)

    reservation = reserved(law.event)
    first = Curator(ArrayBlocks(CURATOR_ROWS), reservation)
    answer = first.release(first.with_stored_inputs(product(0.0)), law)
    again = Curator(ArrayBlocks(CURATOR_ROWS), reservation)
    # the last bits of the directions differ, as if computed on another machine
    settled = again.with_stored_inputs(product(2.0**-23))
    np.testing.assert_array_equal(settled.directions, product(0.0).directions)
    np.testing.assert_array_equal(again.release(settled, law), answer)


def test_a_reservation_never_shows_its_key():
    reservation = InMemoryReservation(event=LAW.event)
    assert len(reservation.key) == 32
    assert repr(reservation.key) not in repr(reservation)
    assert reservation.key != InMemoryReservation(event=LAW.event).key
