"""The gate: its tables say what there is, and what is in no table does not pass."""

import dataclasses
import inspect
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput, StepMismatch, StepTaken
from dpca_tasks.noise.distributions import Cube, Gaussian, Symmetric, UpperTriangle
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import gate
from dpca_tasks.privacy.curator import Curator, DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.request import part_scales_in_steps, scale_in_steps
from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.poisson_sampled import PoissonSampled
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from tests.dpca_tasks.queries.rating_queries import ITEMS, averages, statistics, totals

ROWS = np.arange(12.0).reshape(4, 3) / 10
FACTS: dict[str, Any] = {"n_features": 3, "clip_norm": 1.0, "relation": "zero_out", "bits": 10}
MOMENT = SecondMoment(**FACTS)
LAW = Symmetric(noise_multiplier=4.0)
KEYS = {label: subkey(bytes(32), label=label, info=b"") for label in ("release coins", "step coins", "noise")}
SECRETS = StepSecrets(
    release_coins=KEYS["release coins"], step_coins=KEYS["step coins"], noise=KEYS["noise"], noise_scale=7.0
)


def stated_ways():
    """The rows at the head of the gate: the way out, and the columns behind it."""
    lines = gate.__doc__.split("\n")
    bounds = [at for at, line in enumerate(lines) if line.startswith("====")]
    edges = [match.span() for match in re.finditer("=+", lines[bounds[0]])]
    found: dict[str, list[str]] = {}
    for line in lines[bounds[1] + 1 : bounds[2]]:
        name, *others = (line[first : last + 2].strip() for first, last in edges)
        at = name.strip("`") or list(found)[-1]  # a line without a name goes on with the row above
        found[at] = [f"{old} {new}".strip() for old, new in zip(found.get(at, [""] * 3), others, strict=True)]
    return found


def test_the_table_at_the_head_of_the_gate_has_every_way_out_and_no_other():
    public = {
        name
        for kind in (Curator, DisclosingCurator)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "with_stored_inputs"
    }
    assert set(stated_ways()) == public
    assert all(cell for row in stated_ways().values() for cell in row)


def test_the_proofs_that_the_table_names_exist():
    named = {name for row in stated_ways().values() for name in re.findall("``([A-Za-z_.]+)``", row[2])}
    named -= set(stated_ways())
    assert len(named) == 8
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


def test_a_query_of_another_version_has_no_row():
    class Next(SecondMoment):
        version: ClassVar[int] = 2

    with pytest.raises(InvalidInput, match="second_moment 2 is proved"):
        Curator(ArrayBlocks(ROWS), InMemoryReservation(event=LAW.event, relation="zero_out")).release(
            Next(**FACTS), LAW
        )


def test_a_query_takes_its_secrets_and_no_others():
    product = MomentProduct(**FACTS, directions=np.eye(3, 1, dtype=np.int64))
    sample: Any = PoissonSampled(**FACTS, query=product, rate=0.5).with_secrets(SECRETS)
    reports: Any = LocallyNoised.of(MOMENT).with_secrets(SECRETS)
    assert MOMENT.with_secrets(SECRETS) is MOMENT
    assert (sample.coin_key, sample.noises_itself) == (SECRETS.step_coins, False)
    assert (reports.noise_key, reports.noise_std, reports.noises_itself) == (SECRETS.noise, 7.0, True)
    assert not any(str(key.secret) in repr((sample, reports, SECRETS)) for key in KEYS.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curious(SecondMoment):
    """Writes down the secrets that it is given."""

    given: list[StepSecrets] = field(default_factory=list, repr=False)

    def with_secrets(self, secrets):
        self.given.append(secrets)
        return self

    def digest(self):
        return b""


def test_release_coins_are_one_for_all_steps_and_the_other_secrets_one_a_step():
    event = {"name": "self_composed", "event": dict(LAW.event), "count": 2}
    curator, query = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=event, relation="zero_out")), Curious(**FACTS)
    for _ in range(2):
        curator.release(query, LAW)
    first, second = query.given
    assert first.release_coins.secret == second.release_coins.secret
    keys = {key.secret for given in (first, second) for key in (given.release_coins, given.step_coins, given.noise)}
    assert len(keys) == 5


def test_privacy_asks_no_query_and_no_distribution_for_its_class():
    for path in Path(gate.__file__).parent.rglob("*.py"):
        assert "isinstance(" not in path.read_text(), path.name
        assert "__name__" not in path.read_text().replace("type(error).__name__", ""), path.name


class Raced(InMemoryReservation):
    """A reservation that shows no stored step, and stores each one only where another process has not.

    So it is for a process that looks, computes, and writes after another one wrote.
    """

    def kept(self, step, /):
        return None


TOTALS = totals("zero_out")
RATINGS = np.where(np.random.default_rng(1).random((9, ITEMS)) < 0.5, 3.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "ask", "law"),
    [
        (ROWS, lambda curator, law: curator.release(MOMENT, law), LAW),
        (RATINGS, lambda curator, law: curator.release_parts(TOTALS, law)["sums"], JointGaussian(noise_multiplier=4.0)),
    ],
    ids=["release", "release_parts"],
)
def test_the_answer_that_leaves_is_the_one_that_was_stored_first(rows, ask, law):
    first = InMemoryReservation(event=law.event, relation="zero_out", key=bytes(32))
    stored = ask(Curator(ArrayBlocks(rows), first), law)
    other = {name: value + 1 if name == gate.ANSWER else value for name, value in first.steps[0].items()}
    raced = Raced(event=law.event, relation="zero_out", key=bytes(32), steps={0: other})
    answer = ask(Curator(ArrayBlocks(rows), raced), law)
    assert not np.array_equal(answer, stored)
    reading = InMemoryReservation(event=law.event, relation="zero_out", key=bytes(32), steps={0: other})
    np.testing.assert_array_equal(answer, ask(Curator(ArrayBlocks(rows), reading), law))


def test_a_step_that_another_process_answered_for_another_request_gives_no_second_answer():
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


def test_a_tile_that_another_process_stored_first_is_the_one_that_leaves():
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
    """Each part spends the square of its bound over its std, its share of ``mu^2 = 1 / multiplier^2``."""
    query = JOINT[case]
    scales = part_scales_in_steps(query, JointGaussian(noise_multiplier=multiplier))
    spent = [
        (part.bound * part.steps_per_unit / scale) ** 2
        for part, scale in zip(query.parts.values(), scales, strict=True)
    ]
    assert sum(spent) <= multiplier**-2
    for part, each in zip(query.parts.values(), spent, strict=True):
        assert (1 - 1e-12) * part.share <= each * multiplier**2 <= part.share
