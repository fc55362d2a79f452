"""Privacy audits of joint releases by several sites: bounds hold for an observer, and planted mistakes are detected.

The observer has every masked message of every attempt, the opened totals, and everything that colluding sites know.
Such an observer must learn no more about one record than its site was charged. Keys come from a fixed seed, so a
planted mistake that is found once is always found. Over all keys, each audit of the claim would fail with probability
at most 5 %.

For tensor releases, the privacy loss of one document or point over both rounds is at most what its site is charged.
These tests read the drawn noise and the effect of one record on each sum directly in the process, so no result depends
on chance. Each planted mistake replaces one function on the path from rows to components.
"""

import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.audit.trials import TARGET, choose_event, epsilon_bound
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import word_moments
from dpca_tasks.layouts import Layout, unpack_symmetric
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties, mu_of
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem, TensorReleases
from dpca_tasks.mechanisms.warm_start import Start
from dpca_tasks.noise.distributions import Gaussian, Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy import request
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.privacy.gate import Gate, InMemoryReservation
from dpca_tasks.queries import words
from dpca_tasks.queries.mapped_moment import MappedMoment
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.words import PointTriples, WordPairs, WordTriples
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.sites.roster import Address, MaskSeeds, deal_masks, open_total
from dpca_tasks.sites.rounds import CubeShare, Share, SymmetricShare
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import full
from tests.dpca_tasks.sites.secure_sum.scenes import roster_of

MULTIPLIER = gaussian_noise_multiplier(epsilon=TARGET.epsilon, delta=TARGET.delta)
SITES, ROUNDS = 4, 2
FALSE_ALARM = 0.05


def keyed(*parts):
    return hashlib.sha256(" ".join(map(str, ("joint view", *parts))).encode()).digest()


def sites_of(roster, sources, *, seed, rounds=1):
    """Return a site for each member of the roster, with a fresh key, and the budget reservation of each site."""
    event = events.self_composed(events.gaussian(MULTIPLIER), rounds * roster.attempts)
    dealt = deal_masks(roster, secret=keyed(seed, "masks"))
    reservations = {
        name: InMemoryReservation(event=event, relation="zero_out", key=keyed(seed, name)) for name in roster.names
    }
    sites = [
        Site(name=name, curator=Curator(sources[name], reservations[name]), seeds=dealt[name]) for name in roster.names
    ]
    return sites, reservations


def joint_epsilon(*, declared, colluding, trials):
    """Return a lower bound on the epsilon of one record of site a, when the observer colludes with the last sites."""
    roster = roster_of(SITES, multiplier=MULTIPLIER, colluders=declared)
    moment = SecondMoment(n_features=1, clip_norm=1.0, relation="zero_out", bits=5)
    empty, record = ArrayBlocks(np.zeros((1, 1))), ArrayBlocks(np.ones((1, 1)))
    values = np.zeros((2, trials))
    for side, source in enumerate((record, empty)):
        sources = dict.fromkeys(roster.names, empty) | {"a": source}
        for trial in range(trials):
            sites, reservations = sites_of(roster, sources, seed=(side, trial))
            address = Address(round=0)
            messages = [site.message(moment, roster=roster, address=address) for site in sites]
            total = open_total(messages, roster=roster, address=address)
            known = [reservations[name].steps[0]["answer"] for name in roster.names[SITES - colluding :]]
            values[side, trial] = (total - sum(known)).item()
    half = trials // 2
    event = choose_event({"sum": (values[0, :half], values[1, :half])}, delta=TARGET.delta)
    counts = event.count((values[0, half:], values[1, half:]))
    return float(epsilon_bound(*counts, trials=trials - half, delta=TARGET.delta, miss=FALSE_ALARM / 2))


@pytest.mark.audit
@pytest.mark.parametrize("colluders", [0, 2])
def test_the_bound_of_a_few_trials_is_within_the_claim_of_the_joint_view(colluders):
    assert joint_epsilon(declared=colluders, colluding=colluders, trials=60) <= TARGET.epsilon


@pytest.mark.audit
@pytest.mark.audit_only
@pytest.mark.parametrize("colluders", [0, 2])
def test_the_bound_of_the_joint_view_is_within_the_claim_and_close_to_it(colluders):
    assert 0.35 <= joint_epsilon(declared=colluders, colluding=colluders, trials=2000) <= TARGET.epsilon


@pytest.mark.audit
@pytest.mark.audit_only
def test_more_colluders_than_the_roster_tolerates_are_found():
    """Declare a roster that tolerates no colluders, and let three of four sites collude.

    Only half of the noise remains.
    """
    assert joint_epsilon(declared=0, colluding=3, trials=1000) > TARGET.epsilon


def found_in(views):
    """Return the names of all weaknesses that an observer finds in recorded messages, the result of `views_of`."""
    roster, smaller, words, stored = views
    full = [Address(round=0), Address(round=0, attempt=1)]
    totals = [sum(words[name, address, roster.size] for name in roster.names).view(np.int64) for address in full]
    without = sum(words[name, full[1], smaller.size] for name in smaller.names).view(np.int64)
    found = set()
    if np.any(totals[0] != totals[1]):
        found.add("two noises of one sum")
    if np.array_equal(totals[1] - without, stored["d"]):
        found.add("the share of the site left out")
    if not np.array_equal(totals[0], sum(stored.values())):
        found.add("a total that is no sum")
    for one, other in ((full[0], full[1]), (full[0], Address(round=1))):
        between = [(words[name, one, SITES] - words[name, other, SITES]).view(np.int64) for name in roster.names]
        if any(np.abs(each).max() < 2**50 for each in between):
            found.add("the difference of two shares")
    return found


def views_of(*, weights=(1, 1, 1, 1)):
    """Return the messages of two rounds; the first round is also resent in full and without site d."""
    roster = roster_of(SITES, multiplier=MULTIPLIER, colluders=1, dropouts=1, attempts=2)
    members = tuple(
        dataclasses.replace(one, weight=weight) for one, weight in zip(roster.members, weights, strict=True)
    )
    roster = dataclasses.replace(roster, members=members)
    smaller = roster.without("d")
    moment = SecondMoment(n_features=4, clip_norm=1.0, relation="zero_out", bits=5)
    sources = {name: ArrayBlocks(np.random.default_rng(ord(name)).normal(size=(20, 4))) for name in roster.names}
    sites, reservations = sites_of(roster, sources, seed="views", rounds=ROUNDS)
    words = {}
    for tried, address in (
        (roster, Address(round=0)),
        (roster, Address(round=0, attempt=1)),
        (smaller, Address(round=0, attempt=1)),
        (roster, Address(round=1)),
    ):
        for site in sites:
            if site.name in tried.names:
                message = site.message(moment, roster=tried, address=address)
                words[site.name, address, tried.size] = message.words
    return roster, smaller, words, {name: one.steps[0]["answer"] for name, one in reservations.items()}


@pytest.mark.audit
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 3, 4)], ids=["equal weights", "unlike weights"])
def test_observed_messages_reveal_only_the_totals(weights):
    assert found_in(views_of(weights=weights)) == set()


@pytest.mark.audit
def test_noise_redrawn_on_a_resend_is_found(monkeypatch):
    """Draw new noise for each resend of a total: an average over many resends would have hardly any noise left."""
    count = itertools.count()

    def another_key(gate, request, label):
        return subkey(bytes(32), label=label, info=next(count).to_bytes(8, "little"))

    def store_and_draw_again(gate, request, compute):
        gate.load_or_store(request, lambda: (compute(), {}))
        return compute()

    monkeypatch.setattr(Gate, "key", another_key)
    monkeypatch.setattr(Gate, "load_or_compute", store_and_draw_again)
    assert "two noises of one sum" in found_in(views_of())


@pytest.mark.audit
def test_an_old_share_in_a_smaller_roster_is_found(monkeypatch):
    """Omit the roster from the request that determines the noise.

    The full and the smaller roster have the same number of honest sites, so each site then sends the same noised share
    to both, and the difference of the two totals is the share of the omitted site.
    """
    real = Gate.admit_among

    def forgets(gate, steps, query, noise, numbers, *, bound_to):
        return real(gate, steps, query, noise, numbers, bound_to=b"")

    monkeypatch.setattr(Gate, "admit_among", forgets)
    assert "the share of the site left out" in found_in(views_of())


@pytest.mark.audit
@pytest.mark.parametrize("forgotten", ["attempt", "round and attempt"])
def test_masks_used_again_are_found(monkeypatch, forgotten):
    real = MaskSeeds.mask

    def again(seeds, address, *, roster, size):
        same = Address(round=address.round if forgotten == "attempt" else 0)
        return real(seeds, same, roster=roster, size=size)

    monkeypatch.setattr(MaskSeeds, "mask", again)
    assert found_in(views_of()) == {"the difference of two shares"}


@pytest.mark.audit
def test_a_weight_after_masking_is_found(monkeypatch):
    """Multiply messages by the weights of sites after the masks are added, not before.

    Masks with unequal weights do not cancel, and an even weight removes a bit from every mask.
    """
    real = Site.message

    def weighted_late(site, query, *, roster, address):
        message = real(site, query, roster=roster, address=address)
        return dataclasses.replace(message, words=message.words * np.uint64(roster.member(site.name).weight))

    monkeypatch.setattr(Share, "weight", property(lambda _: 1))
    monkeypatch.setattr(Site, "message", weighted_late)
    assert "a total that is no sum" in found_in(views_of(weights=(1, 2, 3, 4)))


D, TENSOR_SITES_SITES, RELATIONS = 4, 3, ("add_remove", "zero_out", "replace_one")
TENSOR_SITES_TARGET = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)
MECHANISM = CapeAgn(n_components=2, colluders=1)


def problem_of(model, relation):
    bounds = {"words_at_most": 6} if model == "topics" else {"clip_norm": 1.5}
    return TensorProblem(n_features=D, model=model, relation=relation, records_at_most=300, **bounds)


def common_rows(model):
    """Return rows of two components along the first two axes, clear enough for all noise levels of these tests."""
    scale = 6 if model == "topics" else 1.2
    return np.repeat(np.eye(D)[:2] * scale, [170, 130], axis=0)


def pair_of(model, relation):
    """Return two neighboring datasets of the first site, which differ in the last record as the relation states."""
    mine = 6 * np.eye(D)[:1] if model == "topics" else 1.5 * np.eye(D)[:1]
    other = {"replace_one": 6 * np.eye(D)[1:2] if model == "topics" else -mine, "zero_out": 0 * mine}
    rows = common_rows(model)
    there = rows if relation == "add_remove" else np.vstack([rows, other[relation]])
    return np.vstack([rows, mine]), there


def run(problem, first_rows, *, planned_total=None):
    """Run the joint tensor mechanism with these rows at the first site; return the opened sum of each round."""
    plan = MECHANISM.plan([problem] * TENSOR_SITES_SITES, [TENSOR_SITES_TARGET] * TENSOR_SITES_SITES, session="audit")
    parts = [first_rows, *[common_rows(problem.model)] * (TENSOR_SITES_SITES - 1)]
    kept = [
        InMemoryReservation(event=site.event, relation=problem.relation, key=bytes([at + 1]) * 32)
        for at, site in enumerate(plan.sites)
    ]
    requested = []

    class Watched(LocalParties):
        def open(self, query, *, roster, index):
            opened = super().open(query, roster=roster, index=index)
            if index == 0 and planned_total is not None:
                opened = dataclasses.replace(opened, total=planned_total)
            requested.append(opened)
            return opened

    curators = [Curator(ArrayBlocks(part), each) for part, each in zip(parts, kept, strict=True)]
    MECHANISM.run(Watched(curators=curators, roster=plan.roster), plan)
    return requested


def shown_mu(monkeypatch, model, relation):
    """Return mu of one record of the first site over both rounds, from the shift of the sums and the drawn noise."""
    scales = []
    with monkeypatch.context() as patched:
        for kind in (SymmetricShare, CubeShare):
            drawn = kind.draw

            def draw(self, key, order, *, squared_scale, drawn=drawn):
                scales.append(squared_scale)
                return drawn(self, key, order, squared_scale=squared_scale)

            patched.setattr(kind, "draw", draw)
        left, right = pair_of(model, relation)
        requested = run(problem_of(model, relation), left)
    mus = []
    for opened, scale in zip(requested, scales[::TENSOR_SITES_SITES], strict=True):
        query, roster = opened.query, opened.roster
        moved = exact_sum(ArrayBlocks(left), query) - exact_sum(ArrayBlocks(right), query)
        steps = np.linalg.norm(full(query, moved)) * query.steps_per_unit
        mus.append(steps / math.sqrt(roster.honest * scale))
    return math.hypot(*mus)


@pytest.mark.audit
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("model", ["topics", "mixture"])
def test_one_record_has_the_charged_privacy_loss_over_both_rounds(monkeypatch, model, relation):
    shown = shown_mu(monkeypatch, model, relation)
    charged = mu_of(epsilon=TENSOR_SITES_TARGET.epsilon, delta=TENSOR_SITES_TARGET.delta)
    assert shown <= charged
    assert shown > (0.99 if model == "topics" else 0.6) * charged, "documents of one word tell all of it"


@pytest.mark.audit
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
    shown = shown_mu(monkeypatch, model, "replace_one")
    assert shown > mu_of(epsilon=TENSOR_SITES_TARGET.epsilon, delta=TENSOR_SITES_TARGET.delta)


@pytest.mark.audit
def test_noise_after_whitening_is_found(monkeypatch):
    """Double the whitened words of the third moment's core, without more noise: mu must exceed the charge."""
    real = word_moments.add_word_cores

    def whitened(counts, words, row_ptr, directions, steps, bound, total):
        real(counts, words, row_ptr, 2.0 * directions, steps, 1 << 62, total)

    monkeypatch.setattr(words, "add_word_cores", whitened)
    assert shown_mu(monkeypatch, "topics", "zero_out") > 1.5 * mu_of(
        epsilon=TENSOR_SITES_TARGET.epsilon, delta=TENSOR_SITES_TARGET.delta
    )


def second_questions(model):
    """Return the public inputs of the second round's query on two neighboring datasets.

    The total of the first round is set to the same bits for both.
    """
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
    return [requested[1].query.public_inputs() for requested in (opened, again)]


def unlike(model):
    one, other = second_questions(model)
    assert one.keys() == other.keys()
    return {name for name in one if not np.array_equal(one[name], other[name])}


@pytest.mark.audit
@pytest.mark.parametrize("model", ["topics", "mixture"])
def test_the_second_query_depends_on_the_first_total_alone(model):
    assert unlike(model) == set()


@pytest.mark.audit
@pytest.mark.parametrize(
    ("bug", "model"), [("directions", "topics"), ("directions", "mixture"), ("noise_variance", "mixture")]
)
def test_directions_or_a_variance_of_the_rows_themselves_are_found(monkeypatch, bug, model):
    """Compute the query of the second round from private rows of the first site, not from the released total."""
    curated = []
    made, space = Curator.__init__, TensorReleases.space

    def keeps(self, source, reservation, **others):
        curated.append(source)
        made(self, source, reservation, **others)

    def of_rows(self, matrix, *, std):
        query = self.moment_query(bits=12)
        exact = unpack_symmetric(exact_sum(curated[-TENSOR_SITES_SITES], query) / query.steps_per_unit, D) * query.unit
        return dataclasses.replace(space(self, matrix, std=std), **{bug: getattr(space(self, exact, std=1e-9), bug)})

    monkeypatch.setattr(Curator, "__init__", keeps)
    monkeypatch.setattr(TensorReleases, "space", of_rows)
    assert bug in unlike(model)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedPairs(WordPairs):
    """Query for the product of first word and second word as published: its matrix is not symmetric."""

    name = "ordered_pairs"

    @property
    def layout(self):
        return Layout(kind="vector", order=self.n_features**2)

    def add(self, block, total):
        pairs = total.reshape(self.n_features, self.n_features)
        for first in block.row_ptr[:-1]:
            one, two = block.indices[first], block.indices[first + (block.values[first] == 1)]
            pairs[one, two] += self.steps_per_unit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored(Gaussian):
    """Noise distribution with a planted mistake: both halves of a full matrix have the same noise."""

    name = "Mirrored"

    def draw(self, key, order, *, scale_in_steps, start=0, stop=None):
        side = math.isqrt(order)
        packed = Symmetric(noise_multiplier=1.0).draw(key, side, scale_in_steps=scale_in_steps)
        return unpack_symmetric(packed.astype(float), side).astype(np.int64).reshape(-1)[start:stop]


@pytest.mark.audit
def test_a_query_with_an_asymmetric_matrix_has_no_row_and_would_reveal_exact_sums(monkeypatch):
    query = OrderedPairs(n_features=D, relation="zero_out", bits=10, words_at_most=6)
    noise = Mirrored(noise_multiplier=4.0)
    rows = ArrayBlocks(np.array([[2.0, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 2]]))

    def release():
        reservation = InMemoryReservation(event=events.gaussian(4.0), relation="zero_out", key=bytes(32))
        return Curator(rows, reservation).release(query, noise).reshape(D, D)

    with pytest.raises(InvalidInput, match="no sensitivity"):
        release()
    row = request.Row(query.kind, (noise.name,), "l2", 1.0, 1.0, math.sqrt(2))
    monkeypatch.setitem(request._ROWS, (query.kind, noise.name), row)
    released = release()
    exact = exact_sum(rows, query).reshape(D, D) / query.steps_per_unit
    assert np.abs(released - exact).max() > 1
    np.testing.assert_array_equal(released - released.T, exact - exact.T)
    moment = WordPairs(n_features=D, relation="zero_out", bits=10, words_at_most=6)
    assert moment.layout.size == D * (D + 1) // 2, "of ours one triangle leaves: there is no such part"


MAPPED_SITES, WIDTH = 3, 6


def mapped_pair(relation):
    """Return two neighboring datasets of a site, which differ in a record that no map shrinks, of the clip norm.

    All other records lie along the first two axes, which the maps shrink. So the differing record is clipped after each
    map, and has the largest influence that a record can have.
    """
    common = np.repeat(np.eye(WIDTH)[:2], [900, 600], axis=0)
    there = {"replace_one": np.eye(WIDTH)[3:4], "zero_out": np.zeros((1, WIDTH)), "add_remove": np.zeros((0, WIDTH))}
    return np.vstack([common, np.eye(WIDTH)[2:3]]), np.vstack([common, there[relation]])


def mu_over_maps(monkeypatch, relation, **terms):
    """Return mu of one record of the first site over all rounds of a joint subspace, and mu of the charged event."""
    mechanism = CapePca(n_components=2, colluders=1, **terms)
    problem = Problem(n_features=WIDTH, clip_norm=1.0, relation=relation, records_at_most=2000)
    target = PrivacyTarget(epsilon=4.0, delta=1e-5)
    plan = mechanism.plan([problem] * MAPPED_SITES, [target] * MAPPED_SITES, session="audit")
    stated = {"artifact": "earlier@1", "mean_square": 1.0}
    plan = dataclasses.replace(plan, total=dataclasses.replace(plan.total, start=stated))
    left, right = mapped_pair(relation)
    opened, scales = [], []

    class Watched(LocalParties):
        def open(self, query, *, roster, index):
            opened.append(super().open(query, roster=roster, index=index))
            return opened[-1]

    drawn = SymmetricShare.draw

    def draw(self, key, order, *, squared_scale):
        scales.append(squared_scale)
        return drawn(self, key, order, squared_scale=squared_scale)

    curators = [
        Curator(ArrayBlocks(left), InMemoryReservation(event=site.event, relation=relation, key=keyed("maps", at)))
        for at, site in enumerate(plan.sites)
    ]
    with monkeypatch.context() as patched:
        patched.setattr(SymmetricShare, "draw", draw)
        mechanism.run(Watched(curators=curators, roster=plan.roster), plan)
    mus = []
    for each, scale in zip(opened, scales[::MAPPED_SITES], strict=True):
        moved = exact_sum(ArrayBlocks(left), each.query) - exact_sum(ArrayBlocks(right), each.query)
        steps = np.linalg.norm(full(each.query, moved)) * each.query.steps_per_unit
        mus.append(steps / math.sqrt(each.roster.honest * scale))
    assert any(each.query.directions.shape[1] == 2 for each in opened), "a map is used"
    charged = [1 / step["noise_multiplier"] for step in events.steps(plan.sites[0].event)]
    return math.hypot(*mus), math.hypot(*charged)


EARLIER = Start(
    matrix=np.diag([2700.0, 1800.0, *[1.0] * (WIDTH - 2)]),
    noise_std=4.0,
    n_records=4500.0,
    map=PublicMap.identity(WIDTH),
)
WITH_MAPS = pytest.mark.parametrize("terms", [{"rounds": 3}, {"warm": True, "start": lambda: EARLIER}])


@pytest.mark.audit
@pytest.mark.parametrize("relation", RELATIONS)
@WITH_MAPS
def test_one_record_has_the_charged_privacy_loss_over_rounds_with_maps(monkeypatch, relation, terms):
    """Compare mu of a record with the charge: it is never above, and for this record hardly below.

    In rounds without centring, the first answer counts the records. An emptied record keeps its count.
    """
    mu, charged = mu_over_maps(monkeypatch, relation, **terms)
    assert 0.95 * charged < mu <= charged


@pytest.mark.audit
@pytest.mark.parametrize("relation", RELATIONS)
@WITH_MAPS
def test_noise_in_units_of_unmapped_records_is_found(monkeypatch, relation, terms):
    """Draw noise as if the clip norm of mapped records shrank their integers too, which are up to one unit long."""
    monkeypatch.setattr(
        MappedMoment, "sensitivity", lambda query, norm: SecondMoment.sensitivity(query._moment, norm) * query.norm[0]
    )
    mu, charged = mu_over_maps(monkeypatch, relation, **terms)
    assert mu > 1.05 * charged
