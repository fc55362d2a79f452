"""Shared sums of several sites: sites release only masked shares, and each roster has one noise.

The charged noise is the sum of the noise of all honest sites.
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput, Refused, StepMismatch
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.privacy.gate import Gate, InMemoryReservation
from dpca_tasks.queries.counts import NormHistogram
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sites.roster import Address, deal_masks, open_total
from dpca_tasks.sites.rounds import SymmetricShare, open_round
from dpca_tasks.sites.secure_sum.attempt import SiteMachine, open_sum
from dpca_tasks.sites.secure_sum.session import SiteSession
from dpca_tasks.sites.secure_sum.wire import Context, Participants, Scene
from dpca_tasks.sums.exact_sum import exact_sum
from storage.workspace import Workspace
from tests.dpca_tasks.sites.secure_sum.scenes import Remembered, identity_of, roster_of

FACTS: dict[str, Any] = {"n_features": 5, "clip_norm": 1.0, "relation": "replace_one", "bits": 8}
MOMENT = SecondMoment(**FACTS)
STEP = events.gaussian(4.0)
SOURCES = {name: ArrayBlocks(np.random.default_rng(ord(name)).normal(size=(30, 5))) for name in "abcd"}

STORED = {
    4: ["6be1606f767f0ab5", "d0978f940e458c97", "bf5ed44fb5d1cc35", "2eb11be386f69bee"],
    10: ["6be1606f767f0ab5", "8dd51809bbd6d5f2", "8898500e94a24b6c", "b975f751b021c1c5"],
}
"""Hashes of the results of the first version of shares, by the bits of the grid."""


def product(seed):
    drawn = np.random.default_rng(seed).integers(-(1 << 22), 1 << 22, (5, 2))
    return MomentProduct(**FACTS, directions=drawn)


def reservations_of(roster, rounds=1):
    event = events.self_composed(STEP, rounds * roster.attempts)
    return {
        name: InMemoryReservation(event=event, relation="replace_one", key=bytes([at]) * 32)
        for at, name in enumerate(roster.names)
    }


def sites_of(roster, reservations):
    """Return new site objects with the given reservations, as after a restart of all sites."""
    dealt = deal_masks(roster)
    return [
        Site(name=name, curator=Curator(SOURCES[name], reservations[name]), seeds=dealt[name]) for name in roster.names
    ]


def kept(reservations, step):
    return {name: one.steps[step]["answer"] for name, one in reservations.items() if step in one.steps}


def test_the_total_is_the_weighted_sums_plus_the_kept_noise_in_any_order():
    roster = roster_of(4, colluders=1)
    roster = dataclasses.replace(
        roster, members=tuple(dataclasses.replace(one, weight=at + 1) for at, one in enumerate(roster.members))
    )
    reservations = reservations_of(roster)
    sites, address = sites_of(roster, reservations), Address(round=0)
    messages = [site.message(MOMENT, roster=roster, address=address) for site in sites]
    expected = np.zeros(15, np.int64)
    for weight, name in enumerate(roster.names, start=1):
        share = SymmetricShare(roster=roster, site=name)
        scale = share.squared_scale(MOMENT.sensitivity("l2") * MOMENT.steps_per_unit)
        gate = Gate(SOURCES[name], reservations[name])
        request = gate.admit(
            MOMENT, share, lambda *_, scale=scale, weight=weight: (scale, weight, 3), bound_to=roster.digest
        )
        noise = share.draw(gate.key(request, "noise"), 5, squared_scale=scale)
        np.testing.assert_array_equal(
            kept(reservations, 0)[name], weight * exact_sum(SOURCES[name], MOMENT) + noise, err_msg=name
        )
        expected += kept(reservations, 0)[name]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        total = open_total([messages[at] for at in order], roster=roster, address=address)
        np.testing.assert_array_equal(total, expected)


def test_a_resent_share_has_another_mask_and_costs_nothing():
    roster = roster_of(3)
    reservations = reservations_of(roster)
    sites = sites_of(roster, reservations)
    totals, words = [], []
    for attempt in range(3):
        address = Address(round=0, attempt=attempt)
        messages = [site.message(MOMENT, roster=roster, address=address) for site in sites]
        totals.append(open_total(messages, roster=roster, address=address))
        words += [message.words for message in messages]
    np.testing.assert_array_equal(totals[1:], totals[:-1])
    seen = np.concatenate([*words, *(share.view(np.uint64) for share in kept(reservations, 0).values())])
    assert np.unique(seen).size == seen.size
    assert [sorted(one.steps) for one in reservations.values()] == [[0]] * 3


def test_a_smaller_roster_has_fresh_noise_of_its_size_and_a_charged_step():
    roster = roster_of(4, attempts=2)
    smaller = roster.without("d")
    reservations = reservations_of(roster)
    sites, address = sites_of(roster, reservations), Address(round=0)
    for tried in (roster, smaller, roster, smaller):
        [site.message(MOMENT, roster=tried, address=address) for site in sites if site.name in tried.names]
    assert [sorted(one.steps) for one in reservations.values()] == [[0, 1]] * 3 + [[0]]
    first, second = kept(reservations, 0), kept(reservations, 1)
    for name in smaller.names:
        exact = exact_sum(SOURCES[name], MOMENT)
        assert np.count_nonzero(first[name] - exact == second[name] - exact) < 3
    scales = [
        SymmetricShare(roster=one, site="a").squared_scale(MOMENT.sensitivity("l2") * MOMENT.steps_per_unit)
        for one in (roster, smaller)
    ]
    assert scales[1] / scales[0] == pytest.approx(4 / 3, rel=1e-6)
    with pytest.raises(StepMismatch, match="answered for other requests"):
        sites[0].message(MOMENT, roster=roster.without("c"), address=address)


@pytest.mark.parametrize(
    "event",
    [events.gaussian(2.0), events.self_composed(events.gaussian(2.0), 2)],
    ids=["its own noise", "its own noise twice"],
)
def test_a_reservation_of_another_event_than_the_joint_one_is_refused(event):
    roster = roster_of(4)
    reservation = InMemoryReservation(event=event, relation="replace_one")
    site = Site(name="a", curator=Curator(SOURCES["a"], reservation), seeds=deal_masks(roster)["a"])
    with pytest.raises(StepMismatch, match="a different event"):
        site.message(MOMENT, roster=roster, address=Address(round=0))
    assert reservation.steps == {}


def test_a_round_that_was_not_reserved_is_refused():
    roster = roster_of(3, attempts=2)
    reservations = reservations_of(roster, rounds=2)
    sites = sites_of(roster, reservations)
    with pytest.raises(StepMismatch, match="step 4 was not reserved"):
        open_round(sites, MOMENT, roster=roster, index=2)
    assert all(one.steps == {} for one in reservations.values())


def test_a_site_answers_any_round_without_earlier_rounds():
    roster = roster_of(3)
    ahead, in_turn = reservations_of(roster, rounds=6), reservations_of(roster, rounds=6)
    late = open_round(sites_of(roster, ahead), product(5), roster=roster, index=5)
    for index in range(6):
        last = open_round(sites_of(roster, in_turn), product(index), roster=roster, index=index)
    np.testing.assert_array_equal(late.total, last.total)
    assert [sorted(one.steps) for one in ahead.values()] == [[5]] * 3


def test_a_resumed_round_uses_the_directions_that_a_site_stored():
    roster = roster_of(3)
    reservations = reservations_of(roster, rounds=2)
    requested, other = product(1), product(2)
    sites_of(roster, reservations)[1].message(requested, roster=roster, address=Address(round=1))
    opened = open_round(sites_of(roster, reservations), other, roster=roster, index=1)
    np.testing.assert_array_equal(opened.query.directions, requested.directions)


def test_a_second_request_in_an_answered_round_is_refused():
    roster = roster_of(3)
    sites = sites_of(roster, reservations_of(roster))
    sites[0].message(product(1), roster=roster, address=Address(round=0))
    with pytest.raises(StepMismatch, match="answered for other requests"):
        sites[0].message(product(2), roster=roster, address=Address(round=0, attempt=1))


def test_only_statistics_with_a_proof_capacity_and_separate_seeds_are_shared():
    roster = roster_of(3)
    reservations = reservations_of(roster)
    first, *_ = sites_of(roster, reservations)
    address = Address(round=0)
    with pytest.raises(InvalidInput, match="centred_moment 1 is proved for SymmetricShare"):
        first.message(CentredMoment(**FACTS), roster=roster, address=address)
    histogram = NormHistogram(**FACTS, edges=np.array([0.5, 1.0]))
    with pytest.raises(InvalidInput, match="norm_histogram 1 is proved for VectorShare"):
        first.message(histogram, roster=roster, address=address)
    swapped = Site(name="a", curator=first.curator, seeds=deal_masks(roster)["b"])
    with pytest.raises(InvalidInput, match="do not mask messages of site 'a'"):
        swapped.message(MOMENT, roster=roster, address=address)
    large = dataclasses.replace(roster.members[0], records=2**50)
    with pytest.raises(InvalidInput, match="more than 2\\^63"):
        first.message(MOMENT, roster=dataclasses.replace(roster, members=(large, *roster.members[1:])), address=address)
    assert all(one.steps == {} for one in reservations.values())


@pytest.mark.parametrize(("colluders", "excess"), [(0, 1.0), (1, 1.5)])
def test_the_total_has_the_noise_of_a_pooled_release_increased_for_colluders(colluders, excess):
    """Compare the noise of a total of empty rows with that of a pooled release, times 1.5 with one colluder of 3.

    The 1 % tolerance is five times the standard error of the variance over 500,500 coordinates.
    """
    roster = roster_of(3, colluders=colluders)
    facts = {**FACTS, "n_features": 1000, "bits": 10}
    moment, empty = SecondMoment(**facts), ArrayBlocks(np.zeros((1, 1000)))
    dealt, reservations = deal_masks(roster, secret=bytes(32)), reservations_of(roster)
    sites = [Site(name=name, curator=Curator(empty, reservations[name]), seeds=dealt[name]) for name in roster.names]
    total = open_round(sites, moment, roster=roster, index=0).total
    isometric = total / Symmetric(noise_multiplier=4.0)._weights(1000, 0, total.size)
    pooled = 4.0 * moment.sensitivity("l2") * moment.steps_per_unit
    assert total.size == 500_500
    assert np.mean(isometric**2) / pooled**2 == pytest.approx(excess, rel=0.01)


def open_ledger():
    return Workspace.open().ledger


def begun(ledger, name, event):
    grant = ledger.reserve(
        name,
        run_key=f"joint {name}",
        fingerprint="f",
        event=event,
        epsilon=0.5,
        delta=1e-6,
        snapshot_id=f"of {name}",
        request={},
    )
    return ledger.begin(grant.release_id)


def test_a_restarted_site_answers_its_next_round_from_its_ledger(tmp_path, monkeypatch):
    """Run rounds 0 to 2, restart the sites in another process, run round 3, and resend round 2.

    All rounds are charged once and in advance, so the ledger answers.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(home))
    roster = roster_of(3, attempts=2, multiplier=50.0)
    event = events.self_composed(events.gaussian(50.0), 4 * roster.attempts)
    ledger = open_ledger()
    for name in roster.names:
        ledger.open_budget(name, epsilon=1.0, delta=1e-6, relation="replace_one")
    before = {name: begun(ledger, name, event) for name in roster.names}
    spent = {name: ledger.statement(name).spent for name in roster.names}
    assert min(spent.values()) > 0
    totals = [
        open_round(sites_of(roster, before), product(index), roster=roster, index=index).total for index in range(3)
    ]
    again = open_ledger()
    after = {name: begun(again, name, event) for name in roster.names}
    sites = sites_of(roster, after)
    open_round(sites, product(3), roster=roster, index=3)
    np.testing.assert_array_equal(open_round(sites, product(2), roster=roster, index=2).total, totals[2])
    smaller = open_round([site for site in sites if site.name != "c"], product(3), roster=roster.without("c"), index=3)
    assert smaller.roster.size == 2
    for name in roster.names:
        stored = [step for step in range(8) if after[name].kept(step) is not None]
        assert stored == [0, 2, 4, 6] + [7] * (name != "c")
        assert again.statement(name).spent == spent[name]
    with pytest.raises(Refused, match="no noise would remain unknown"):
        roster.without("a", "b")


@pytest.mark.parametrize("bits", [4, 10], ids=["one draw", "two draws"])
def test_a_stored_share_equals_that_of_an_earlier_version(bits):
    """Compare digest, stored share and message with those of an earlier version, for fixed inputs.

    A later version must be able to finish a joint release in progress.
    """
    roster = roster_of(3, colluders=1, attempts=2)
    reservations = reservations_of(roster)
    dealt = deal_masks(roster, secret=bytes(32))
    moment = SecondMoment(**FACTS | {"bits": bits})
    site = Site(name="b", curator=Curator(ArrayBlocks(np.eye(5)), reservations["b"]), seeds=dealt["b"])
    message = site.message(moment, roster=roster, address=Address(round=0, attempt=3))
    stored = reservations["b"].steps[0]
    made = [roster.digest, *(stored[name].tobytes() for name in ("question", "answer")), message.words.tobytes()]
    assert [hashlib.sha256(part).hexdigest()[:16] for part in made] == STORED[bits]


def test_ten_sites_open_equal_bits_under_masks_of_a_dealer_and_of_a_secure_sum():
    """Open the total of ten sites with masks from a dealer and from a secure sum: the bits must be equal.

    The noised integers depend on key and roster alone, and both kinds of masks cancel in the total.
    """
    roster, address = roster_of(10, colluders=3), Address(round=0)
    sources = {name: ArrayBlocks(np.random.default_rng(ord(name)).normal(size=(30, 5))) for name in roster.names}
    totals = []
    for agree in (False, True):
        reservations = reservations_of(roster)
        dealt = deal_masks(roster)
        sites = {
            name: Site(name=name, curator=Curator(sources[name], reservations[name]), seeds=dealt[name])
            for name in roster.names
        }
        if agree:
            totals.append(secure_total(sites, MOMENT, roster=roster, address=address))
        else:
            messages = [site.message(MOMENT, roster=roster, address=address) for site in sites.values()]
            totals.append(open_total(messages, roster=roster, address=address))
        np.testing.assert_array_equal(totals[-1], sum(kept(reservations, 0).values()))
    np.testing.assert_array_equal(*totals)


def secure_total(sites, query, *, roster, address):
    """Return the total opened by the secure-sum protocol, with one state machine per site and a server."""
    participants = Participants(roster=roster, keys={name: identity_of(name).public for name in sites})
    size = query.layout.size
    context = Context(
        session=roster.session, address=address, participants=participants.digest, requested=query.digest(), words=size
    )
    scene = Scene(participants=participants, context=context)

    def machine(name, site):
        def contribute(masks):
            return dataclasses.replace(site, seeds=masks).message(query, roster=roster, address=address).words

        facts = {"identity": identity_of(name), "memory": Remembered(), "contribute": contribute}
        return SiteMachine(SiteSession(scene=scene, site=name, **facts))

    lines = {name: machine(name, site).receive for name, site in sites.items()}
    return open_sum(scene, lines).integers
