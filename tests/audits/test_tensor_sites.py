"""What sites tell of a document or a point in both rounds is what they are charged, and classic mistakes are found.

The noise that is drawn and the way that a record moves each sum are read exactly, inside; so nothing here is left to
chance. Each bug is one patched name on the way from rows to components.
"""

import dataclasses
import math

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import word_moments
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.sites.cape import mu_of
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem, TensorReleases
from dpca_tasks.noise.distributions import Gaussian, Symmetric
from dpca_tasks.privacy import sensitivities
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries import words
from dpca_tasks.queries.point_triples import PointTriples
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.words import WordPairs, WordTriples
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sites.shares import CubeShare, SymmetricShare
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import full

pytestmark = pytest.mark.audit
D, SITES, RELATIONS = 4, 3, ("add_remove", "zero_out", "replace_one")
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)
MECHANISM = CapeAgn(n_components=2, colluders=1)


def problem_of(model, relation):
    bounds = {"words_at_most": 6} if model == "topics" else {"clip_norm": 1.5}
    return TensorProblem(n_features=D, model=model, relation=relation, records_at_most=300, **bounds)


def common_rows(model):
    """Rows of two components along the first axes, clear enough for any noise here."""
    scale = 6 if model == "topics" else 1.2
    return np.repeat(np.eye(D)[:2] * scale, [170, 130], axis=0)


def pair_of(model, relation):
    """Rows of the first site with and without, or with another last record: along axes, or opposite ones."""
    mine = 6 * np.eye(D)[:1] if model == "topics" else 1.5 * np.eye(D)[:1]
    other = {"replace_one": 6 * np.eye(D)[1:2] if model == "topics" else -mine, "zero_out": 0 * mine}
    rows = common_rows(model)
    there = rows if relation == "add_remove" else np.vstack([rows, other[relation]])
    return np.vstack([rows, mine]), there


def run(problem, first_rows, *, planned_total=None):
    """Run the mechanism over sites whose first has these rows; return what was asked, and the noise that was drawn."""
    plan = MECHANISM.plan([problem] * SITES, [TARGET] * SITES, session="audit")
    parts = [first_rows, *[common_rows(problem.model)] * (SITES - 1)]
    kept = [
        InMemoryReservation(event=site.event, relation=problem.relation, key=bytes([at + 1]) * 32)
        for at, site in enumerate(plan.sites)
    ]
    asked = []

    class Watched(LocalParties):
        def open(self, query, *, roster, index):
            opened = super().open(query, roster=roster, index=index)
            if index == 0 and planned_total is not None:
                opened = dataclasses.replace(opened, total=planned_total)
            asked.append(opened)
            return opened

    curators = [Curator(ArrayBlocks(part), each) for part, each in zip(parts, kept, strict=True)]
    MECHANISM.run(Watched(curators=curators, roster=plan.roster), plan)
    return asked


def told_mu(monkeypatch, model, relation):
    """The mu of one record of the first site in both rounds together, from what moves and what noise is drawn."""
    scales = []
    with monkeypatch.context() as patched:
        for kind in (SymmetricShare, CubeShare):
            drawn = kind.draw

            def draw(self, key, order, *, squared_scale, drawn=drawn):
                scales.append(squared_scale)
                return drawn(self, key, order, squared_scale=squared_scale)

            patched.setattr(kind, "draw", draw)
        left, right = pair_of(model, relation)
        asked = run(problem_of(model, relation), left)
    mus = []
    for opened, scale in zip(asked, scales[::SITES], strict=True):
        query, roster = opened.query, opened.roster
        moved = exact_sum(ArrayBlocks(left), query) - exact_sum(ArrayBlocks(right), query)
        steps = np.linalg.norm(full(query, moved)) * query.steps_per_unit
        mus.append(steps / math.sqrt(roster.honest * scale))
    return math.hypot(*mus)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("model", ["topics", "mixture"])
def test_a_record_tells_what_is_charged_for_both_rounds_and_no_more(monkeypatch, model, relation):
    told = told_mu(monkeypatch, model, relation)
    charged = mu_of(epsilon=TARGET.epsilon, delta=TARGET.delta)
    assert told <= charged
    assert told > (0.99 if model == "topics" else 0.6) * charged, "documents of one word tell all of it"


@pytest.mark.parametrize("kinds", [(WordPairs, WordTriples), (SecondMoment, PointTriples)], ids=["topics", "mixture"])
def test_the_sensitivity_of_another_relation_is_found(monkeypatch, kinds):
    for kind in kinds:
        real = kind.sensitivity
        monkeypatch.setattr(
            kind,
            "sensitivity",
            lambda self, norm, real=real: real(dataclasses.replace(self, relation="add_remove"), norm),
        )
    model = "topics" if WordPairs in kinds else "mixture"
    told = told_mu(monkeypatch, model, "replace_one")
    assert told > mu_of(epsilon=TARGET.epsilon, delta=TARGET.delta)


def test_noise_after_whitening_is_found(monkeypatch):
    """The core of whitened words, twice as long, with the noise of words that are not whitened."""
    real = word_moments.add_word_cores

    def whitened(counts, words, row_ptr, directions, steps, bound, total):
        real(counts, words, row_ptr, 2.0 * directions, steps, 1 << 62, total)

    monkeypatch.setattr(words, "add_word_cores", whitened)
    assert told_mu(monkeypatch, "topics", "zero_out") > 1.5 * mu_of(epsilon=TARGET.epsilon, delta=TARGET.delta)


def second_questions(model):
    """What is asked in the second round of two neighbouring datasets whose first totals were the same to the bit."""
    problem, unlike_rows = (
        problem_of(model, "replace_one"),
        {
            "topics": ([1.0, 2, 3, 0], [0.0, 1, 1, 4]),
            "mixture": ([0.4, 0.3, 0.9, 0.1], [0.2, -0.5, 0.1, 1.0]),
        },
    )
    left, right = (np.vstack([common_rows(model), row]) for row in unlike_rows[model])
    opened = run(problem, left)
    again = run(problem, right, planned_total=opened[0].total)
    return [asked[1].query.public_inputs() for asked in (opened, again)]


def unlike(model):
    one, other = second_questions(model)
    assert one.keys() == other.keys()
    return {name for name in one if not np.array_equal(one[name], other[name])}


@pytest.mark.parametrize("model", ["topics", "mixture"])
def test_the_second_question_depends_on_the_first_total_alone(model):
    assert unlike(model) == set()


@pytest.mark.parametrize(
    ("bug", "model"), [("directions", "topics"), ("directions", "mixture"), ("noise_variance", "mixture")]
)
def test_directions_or_a_variance_of_the_rows_themselves_are_found(monkeypatch, bug, model):
    """A hurried engineer has the first site's rows at hand, and takes what is asked next from them."""
    curated = []
    made, space = Curator.__init__, TensorReleases.space

    def keeps(self, source, reservation, **others):
        curated.append(source)
        made(self, source, reservation, **others)

    def of_rows(self, matrix, *, std):
        query = self.moment_query(bits=12)
        exact = unpack_symmetric(exact_sum(curated[-SITES], query) / query.steps_per_unit, D) * query.unit
        return dataclasses.replace(space(self, matrix, std=std), **{bug: getattr(space(self, exact, std=1e-9), bug)})

    monkeypatch.setattr(Curator, "__init__", keeps)
    monkeypatch.setattr(TensorReleases, "space", of_rows)
    assert bug in unlike(model)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedPairs(WordPairs):
    """The first word times the second, as published: a matrix that is not symmetric."""

    name = "ordered_pairs"

    @property
    def layout(self):
        return Layout(kind="vector", order=self.n_features**2)

    def map(self, block):
        total = np.zeros((self.n_features, self.n_features), np.int64)
        for first in block.row_ptr[:-1]:
            one, two = block.indices[first], block.indices[first + (block.values[first] == 1)]
            total[one, two] += self.steps_per_unit
        return total.reshape(-1)

    def add(self, block, total):
        total += self.map(block)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored(Gaussian):
    """Noise of a symmetric matrix on every entry of a full one."""

    name = "Mirrored"

    def draw(self, key, order, *, scale_in_steps, start=0, stop=None):
        side = math.isqrt(order)
        packed = Symmetric(noise_multiplier=1.0).draw(key, side, scale_in_steps=scale_in_steps)
        return unpack_symmetric(packed.astype(float), side).astype(np.int64).reshape(-1)[start:stop]


def test_a_moment_that_is_not_symmetrised_has_no_row_and_would_be_read_without_noise(monkeypatch):
    query = OrderedPairs(n_features=D, relation="zero_out", bits=10, words_at_most=6)
    noise = Mirrored(noise_multiplier=4.0)
    rows = ArrayBlocks(np.array([[2.0, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 2]]))

    def release():
        reservation = InMemoryReservation(event=events.gaussian(4.0), relation="zero_out", key=bytes(32))
        return Curator(rows, reservation).release(query, noise).reshape(D, D)

    with pytest.raises(InvalidInput, match="no sensitivity"):
        release()
    row = sensitivities.Row(query.kind, (noise.name,), "l2", 1.0, 1.0, math.sqrt(2))
    monkeypatch.setitem(sensitivities._ROWS, (query.kind, noise.name), row)
    released = release()
    exact = exact_sum(rows, query).reshape(D, D) / query.steps_per_unit
    assert np.abs(released - exact).max() > 1
    np.testing.assert_array_equal(released - released.T, exact - exact.T)
    moment = WordPairs(n_features=D, relation="zero_out", bits=10, words_at_most=6)
    assert moment.layout.size == D * (D + 1) // 2, "of ours one triangle leaves: there is no such part"
