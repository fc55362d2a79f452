"""What sees all messages of a joint release learns no more than was charged, and classic mistakes in them are found.

The viewer has every masked message of every attempt, the opened totals, and all that colluding sites know. Keys come
from a fixed seed, so what is found once is found always. Over all keys the audits of the claim would fail with
probability at most 5 % each.
"""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.audit.bounds import choose_event, epsilon_bound
from dpca_tasks.audit.trials import TARGET
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.privacy.gate import Gate, InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sites.masks import Address, MaskSeeds, deal_masks, open_total
from dpca_tasks.sites.shares import Share
from tests.dpca_tasks.sites.rosters import roster_of

pytestmark = pytest.mark.audit
MULTIPLIER = gaussian_noise_multiplier(epsilon=TARGET.epsilon, delta=TARGET.delta)
SITES, ROUNDS = 4, 2
FALSE_ALARM = 0.05


def keyed(*parts):
    return hashlib.sha256(" ".join(map(str, ("joint view", *parts))).encode()).digest()


def sites_of(roster, sources, *, seed, rounds=1):
    """Return sites of fresh keys, and their reservations."""
    event = events.self_composed(events.gaussian(MULTIPLIER), rounds * roster.attempts)
    dealt = deal_masks(roster, secret=keyed(seed, "masks"))
    reservations = {
        name: InMemoryReservation(event=event, relation="zero_out", key=keyed(seed, name)) for name in roster.names
    }
    sites = [
        Site(name=name, curator=Curator(sources[name], reservations[name]), seeds=dealt[name]) for name in roster.names
    ]
    return sites, reservations


def joint_epsilon(*, stated, colluding, trials):
    """Bound from below the epsilon of one record of site a, for a viewer with whom the last sites collude."""
    roster = roster_of(SITES, multiplier=MULTIPLIER, colluders=stated)
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


@pytest.mark.parametrize("colluders", [0, 2])
def test_the_joint_view_keeps_its_claim_under_a_few_trials(colluders):
    assert joint_epsilon(stated=colluders, colluding=colluders, trials=60) <= TARGET.epsilon


@pytest.mark.audit_only
@pytest.mark.parametrize("colluders", [0, 2])
def test_the_joint_view_keeps_its_claim_and_the_attack_comes_near_it(colluders):
    assert 0.35 <= joint_epsilon(stated=colluders, colluding=colluders, trials=2000) <= TARGET.epsilon


@pytest.mark.audit_only
def test_more_colluders_than_the_roster_tolerates_are_found():
    """Three of four instead of none: half the noise is left."""
    assert joint_epsilon(stated=0, colluding=3, trials=1000) > TARGET.epsilon


def found_in(views):
    """Return what a viewer finds in the messages of two rounds, a resend, and a smaller roster."""
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
    """Run two rounds, with a resend and a smaller roster of as many honest sites in the first."""
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


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 3, 4)], ids=["equal weights", "unlike weights"])
def test_nothing_but_totals_is_found_in_the_messages(weights):
    assert found_in(views_of(weights=weights)) == set()


def test_noise_redrawn_on_a_resend_is_found(monkeypatch):
    """The average of many such totals has hardly any noise left."""
    count = itertools.count()

    def another_key(gate, request, label):
        return subkey(bytes(32), label=label, info=next(count).to_bytes(8, "little"))

    def store_and_draw_again(gate, request, compute):
        gate.load_or_store(request, lambda: (compute(), {}))
        return compute()

    monkeypatch.setattr(Gate, "key", another_key)
    monkeypatch.setattr(Gate, "load_or_compute", store_and_draw_again)
    assert "two noises of one sum" in found_in(views_of())


def test_an_old_share_in_a_smaller_roster_is_found(monkeypatch):
    """The roster is not part of what the noise belongs to: both rosters have as many honest sites, so one answer."""
    real = Gate.admit_among

    def forgets(gate, steps, query, noise, numbers, *, bound_to):
        return real(gate, steps, query, noise, numbers, bound_to=b"")

    monkeypatch.setattr(Gate, "admit_among", forgets)
    assert "the share of the site left out" in found_in(views_of())


@pytest.mark.parametrize("forgotten", ["attempt", "round and attempt"])
def test_masks_used_again_are_found(monkeypatch, forgotten):
    real = MaskSeeds.mask

    def again(seeds, address, *, roster, size):
        same = Address(round=address.round if forgotten == "attempt" else 0)
        return real(seeds, same, roster=roster, size=size)

    monkeypatch.setattr(MaskSeeds, "mask", again)
    assert found_in(views_of()) == {"the difference of two shares"}


def test_a_weight_after_masking_is_found(monkeypatch):
    """The masks of unlike weights do not cancel, and an even weight takes a bit off every mask."""
    real = Site.message

    def weighted_late(site, query, *, roster, address):
        message = real(site, query, roster=roster, address=address)
        return dataclasses.replace(message, words=message.words * np.uint64(roster.member(site.name).weight))

    monkeypatch.setattr(Share, "weight", property(lambda _: 1))
    monkeypatch.setattr(Site, "message", weighted_late)
    assert "a total that is no sum" in found_in(views_of(weights=(1, 2, 3, 4)))
