"""A site's state machine against a dishonest server: each attack on a secure sum is detected or gains nothing.

The server of a test sends arbitrary messages: lies about the roster, replays, dropped messages, and inconsistent views.
Five sites, of which one colludes and one may be lost, have the threshold four: ``2 t = 8 > S + C = 6``.
"""

import contextlib
import itertools
import logging
from typing import Any

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput, MessageRefused, SiteSilent
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.attempt import Begin, KeyList, Keys, ServerKeys, SiteMachine, propose
from dpca_tasks.sites.secure_sum.opening import OpeningShares, Signatures, SignedSenders
from dpca_tasks.sites.secure_sum.session import DoubleMasks, Pairing, SiteSession, recover
from dpca_tasks.sites.secure_sum.shares import Delivered, Senders
from dpca_tasks.sites.secure_sum.wire import Participants, decode, encode
from tests.dpca_tasks.sites.secure_sum.scenes import World, attempt, circle_of, identity_of, scene_of


@pytest.fixture
def world():
    return World(circle_of(5, colluders=1, dropouts=1))


def begun(world, scene):
    """Return all sites' machines, and the decoded keys that they sent."""
    machines = world.machines(scene)
    frames = {place: machine.receive(propose(scene)) for place, machine in machines.items()}
    return machines, {place: decode(frame, Keys, scene) for place, frame in frames.items()}


def shared(world, scene):
    """Return the machines, the frames of sealed shares for delivery, and the server's phase."""
    machines, keys = begun(world, scene)
    phase: Any = ServerKeys(scene=scene, awaited=frozenset(machines), received=keys)
    frames, phase = phase.close()
    for place, frame in frames.items():
        phase.receive(machines[place].receive(frame), sender=place)
    return machines, *phase.close()


def summed(world, scene):
    """Return the machines after they sent their masked sums, and the server's phase before it names the senders."""
    machines, frames, phase = shared(world, scene)
    for place, frame in frames.items():
        phase.receive(machines[place].receive(frame), sender=place)
    return machines, phase


def reported(machine, message, scene):
    return machine.receive(encode(message, scene))


def refused(machine, frame, refusal):
    """Send a frame twice: the machine must refuse it twice with the same message, so its state is unchanged."""
    for _ in range(2):
        with pytest.raises(MessageRefused, match=refusal):
            machine.receive(frame)


# --- a false roster ---


def test_an_unknown_roster_is_refused_before_anything_is_sent(world):
    machines = world.machines(world.scene())
    another = {name: identity_of(name).public for name in world.participants.names} | {"e": identity_of("x").public}
    lies = {
        "roster or identity keys": scene_of(world.participants.without("e")),
        "roster or identity keys ": scene_of(Participants(roster=world.participants.roster, keys=another)),
        "session": scene_of(circle_of(5, colluders=1, dropouts=1, session="autumn")),
        "round and attempt": world.scene(round_index=1),
        "query": world.scene(requested=bytes(32)),
        "number of integers": scene_of(world.participants, words=6),
    }
    for refusal, scene in lies.items():
        refused(machines[0], propose(scene), f"the {refusal.strip()} that the server proposes differs from this site's")
    assert not world.memories["a"].kept


def test_sites_with_different_rosters_refuse_each_others_keys(world):
    """Show two sites different rosters: they must not accept each other's keys.

    Each site agrees with the server, but the signatures of the two sites cover different contexts.
    """
    scene = world.scene()
    _, keys = begun(world, scene)
    other = scene_of(
        Participants(roster=world.participants.roster, keys=world.participants.keys | {"e": identity_of("x").public})
    )
    machine = world.machine("a", scene_of(world.participants, attempt=1))
    lied = SiteMachine(
        SiteSession(
            scene=other,
            site="a",
            identity=identity_of("a"),
            memory=World(other.participants).memories["a"],
            contribute=machine.receive,
        )
    )
    lied.receive(propose(other))
    refused(lied, encode(KeyList(frames=keys), other), "of another session, round, attempt, roster")


def test_a_site_outside_the_roster_cannot_participate(world):
    facts = {"memory": world.memories["a"], "contribute": lambda masks: None, "identity": identity_of("x")}
    with pytest.raises(InvalidInput, match="site 'x' is not in the roster"):
        SiteSession(scene=world.scene(), site="x", **facts)


# --- replays ---


def test_an_attempt_is_never_begun_twice_even_after_a_restart(world):
    scene = world.scene()
    attempt(world, scene)
    refused(world.machine("a", scene), propose(scene), "attempt 0 of round 0 already began at this site")
    np.testing.assert_array_equal(
        attempt(world, world.scene(attempt=1)).integers, world.sum_of(*world.participants.names)
    )


def test_keys_of_an_earlier_attempt_are_refused(world):
    _, old = begun(world, world.scene())
    scene = world.scene(attempt=1)
    machines, keys = begun(world, scene)
    mixed = KeyList(frames=keys | {4: old[4]})
    refused(machines[0], encode(mixed, scene), "of another session, round, attempt, roster")


def test_every_frame_is_accepted_once(world):
    """Send each frame a second time in a later phase: it must be refused, also the last one, which requests shares."""
    scene = world.scene()
    machines, phase = summed(world, scene)
    senders = Senders(senders=frozenset(range(5)))
    signed = {place: decode(reported(machines[place], senders, scene), SignedSenders, scene) for place in machines}
    refused(machines[0], encode(senders, scene), r"of kind 7 arrived, but kind 9 \(signatures\)")
    signatures = Signatures(frames=signed)
    reported(machines[0], signatures, scene)
    refused(machines[0], encode(signatures, scene), "arrived after the end of an attempt")
    assert phase.present == frozenset(range(5))


def test_the_server_accepts_a_sites_message_once_and_only_over_the_sites_connection(world):
    scene = world.scene()
    machines = world.machines(scene)
    phase = ServerKeys(scene=scene, awaited=frozenset(machines))
    frame = machines[0].receive(propose(scene))
    with pytest.raises(MessageRefused, match="of site 'a' are not expected from this connection"):
        phase.receive(frame, sender=1)
    phase.receive(frame, sender=0)
    with pytest.raises(MessageRefused, match="arrived before"):
        phase.receive(frame, sender=0)


def test_a_late_masked_sum_is_refused_by_its_type(world):
    machines, frames, phase = shared(world, world.scene())
    answers = {place: machines[place].receive(frame) for place, frame in frames.items()}
    late = answers.pop(4)
    for place, answer in answers.items():
        phase.receive(answer, sender=place)
    _, phase = phase.close()
    with pytest.raises(MessageRefused, match=r"of kind 6 arrived, but kind 8 \(signed senders\)"):
        phase.receive(late, sender=4)


# --- inconsistent views of two sites ---


def test_different_lists_of_keys_are_detected_before_a_masked_sum_is_sent(world):
    """Omit site e from the list of keys for one site: shares sealed under the other list cannot be opened."""
    scene = world.scene()
    machines, keys = begun(world, scene)
    short = {place: one for place, one in keys.items() if place != 4}
    phase = ServerKeys(scene=scene, awaited=frozenset(machines), received=keys).close()[1]
    sealed = {}
    for place in range(5):
        shown = short if place == 0 else keys
        answer = reported(machines[place], KeyList(frames=shown), scene)
        sealed[place] = decode(answer, phase.expects, scene).message.sealed
    delivered = Delivered(sealed={other: sealed[other][0] for other in (1, 2, 3)})
    refused(machines[0], encode(delivered, scene), "from site 'b' were changed, or made for another list of keys")
    delivered = Delivered(sealed={other: sealed[other][1] for other in (0, 2, 3)})
    refused(machines[1], encode(delivered, scene), "from site 'a' were changed, or made for another list of keys")


def test_keys_that_the_server_made_are_refused(world):
    scene = world.scene()
    machines, keys = begun(world, scene)
    of_server = encode(keys[1].message, scene, sender="b", identity=identity_of("the server"))
    forged = KeyList(frames=keys).body(scene).replace(keys[1].raw, of_server)
    frame = encode(KeyList(frames=keys), scene)
    refused(
        machines[0], frame.replace(KeyList(frames=keys).body(scene), forged), "name of site 'b' lacks the signature"
    )


def test_a_list_without_the_sites_own_keys_or_below_the_threshold_is_refused(world):
    scene = world.scene()
    machines, keys = begun(world, scene)
    without = {place: one for place, one in keys.items() if place != 0}
    refused(machines[0], encode(KeyList(frames=without), scene), r"at least 4 sites, including this one \(got 4\)")
    few = {place: keys[place] for place in range(3)}
    refused(machines[0], encode(KeyList(frames=few), scene), r"at least 4 sites, including this one \(got 3\)")


def test_a_colluder_that_signs_two_keys_or_repeats_another_key_is_detected(world):
    scene = world.scene()
    machines, keys = begun(world, scene)
    posing = encode(Keys(public=keys[0].message.public), scene, sender="e", identity=identity_of("e"))
    lied = keys | {4: decode(posing, Keys, scene)}
    refused(machines[0], encode(KeyList(frames=lied), scene), "two keys of the list are equal")
    doubled = keys | {0: decode(encode(keys[4].message, scene, sender="a", identity=identity_of("a")), Keys, scene)}
    refused(machines[0], encode(KeyList(frames=doubled), scene), "other keys of this site than the site sent")


def test_different_deliveries_are_detected_before_a_share_is_sent(world):
    """Tell site a that e shared nothing, and all others that e did: no site may release a share.

    The transcripts that the sites sign differ.
    """
    scene = world.scene()
    machines, frames, _ = shared(world, scene)
    short = decode(frames[0], Delivered, scene).message.sealed
    del short[4]
    machines[0].receive(encode(Delivered(sealed=short), scene))
    for place in range(1, 5):
        machines[place].receive(frames[place])
    senders = Senders(senders=frozenset(range(4)))
    signed = {place: decode(reported(machines[place], senders, scene), SignedSenders, scene) for place in range(4)}
    for place in range(4):
        refused(
            machines[place],
            encode(Signatures(frames=signed), scene),
            "different keys or shares, so the server is dishonest",
        )


@pytest.mark.parametrize("shown_lost", range(5), ids=lambda count: f"{count} of 4")
def test_both_kinds_of_share_of_one_site_are_never_released(world, shown_lost):
    """Tell some honest sites that d is lost, and others that d sent; the colluder e signs both statements.

    Four signatures are needed, and e contributes one to each set of senders. At most one set can get the other three,
    because no honest site signs both.
    """
    scene = world.scene()
    machines, _ = summed(world, scene)
    sets = {"seed": frozenset(range(5)), "key": frozenset({0, 1, 2, 4})}
    signed: dict[str, dict[int, Any]] = {kind: {} for kind in sets}
    for place in range(4):
        kind = "key" if place < shown_lost else "seed"
        with contextlib.suppress(MessageRefused):  # d does not sign a set of senders that omits d
            answer = reported(machines[place], Senders(senders=sets[kind]), scene)
            signed[kind][place] = decode(answer, SignedSenders, scene)
    transcript = next(iter((signed["seed"] | signed["key"]).values())).message.transcript
    for kind, senders in sets.items():
        text = SignedSenders(transcript=transcript, senders=senders)
        signed[kind][4] = decode(encode(text, scene, sender="e", identity=identity_of("e")), SignedSenders, scene)
    given = dict.fromkeys(sets, 0)
    for kind, place in itertools.product(sets, range(4)):
        with contextlib.suppress(MessageRefused):
            reported(machines[place], Signatures(frames=signed[kind]), scene)
            given[kind] += 1
    expected = {0: (4, 0), 1: (3, 0), 2: (0, 0), 3: (0, 3), 4: (0, 3)}[shown_lost]
    assert (given["seed"], given["key"]) == expected


def test_signatures_of_an_omitted_site_or_too_few_signatures_open_nothing(world):
    scene = world.scene()
    machines, _ = summed(world, scene)
    senders = Senders(senders=frozenset(range(4)))
    signed = {place: decode(reported(machines[place], senders, scene), SignedSenders, scene) for place in range(4)}
    few = {place: signed[place] for place in range(3)}
    refused(
        machines[0],
        encode(Signatures(frames=few), scene),
        r"signatures must cover at least 4 sites, including this one \(got 3\)",
    )
    text = encode(signed[0].message, scene, sender="e", identity=identity_of("e"))
    left_out = few | {4: decode(text, SignedSenders, scene)}
    refused(
        machines[0], encode(Signatures(frames=left_out), scene), "different keys or shares, so the server is dishonest"
    )
    refused(machines[4], encode(senders, scene), "including this one")


# --- dropped messages, and two sums of the same integers ---


def test_a_dropped_message_is_hidden_by_the_sites_own_mask(world):
    """Open a sum without e, while the server has e's message: what remains must be uniform.

    So e's own mask hides e's integers.
    """
    scene = world.scene()
    machines, phase = summed(world, scene)
    kept = phase.received[4].message.words
    del phase.received[4]
    frames, phase = phase.close()
    for place, frame in frames.items():
        phase.receive(machines[place].receive(frame), sender=place)
    frames, phase = phase.close()
    for place, frame in frames.items():
        phase.receive(machines[place].receive(frame), sender=place)
    total = phase.close()
    np.testing.assert_array_equal(total.integers, world.sum_of(*"abcd"))
    # The masking key of e was opened, so the server can subtract all pairwise masks.
    shares = {place + 1: phase.received[place].message.shares[4] for place in range(4)}
    pairing = Pairing(scene=scene, place=4, secret=SecretKey(recover(shares)))
    assert pairing.public == phase.keys[4].masking
    left = kept - DoubleMasks(
        scene=scene,
        site="e",
        self_seed=SecretKey(bytes(32)),
        pair_seeds={other: pairing.mask_seed(other, public=phase.keys[other].masking) for other in range(4)},
    ).mask(scene.context.address, roster=world.participants.roster, size=5)
    assert not np.any(left == world.integers["e"].view(np.uint64))


def test_a_second_set_of_senders_under_the_same_noise_is_never_opened(world):
    """After a sum without e was opened, no attempt may open the sum with e: the difference would be e's integers."""
    first = attempt(world, world.scene(), lost=[("e", "masked sums")])
    assert first.senders == tuple("abcd")
    scene = world.scene(attempt=1)
    machines, _ = summed(world, scene)
    for place in range(4):
        refused(machines[place], encode(Senders(senders=frozenset(range(5))), scene), "another set of sites under the")
    again = attempt(world, world.scene(attempt=2))
    assert again.senders == tuple("abcd")
    np.testing.assert_array_equal(again.integers, first.integers)


def test_an_opened_set_of_senders_that_lost_a_site_is_not_opened_again(world):
    attempt(world, world.scene(), lost=[("e", "masked sums")])
    with pytest.raises(SiteSilent, match="sites a are missing, and this noise may be unmasked only with them"):
        attempt(world, world.scene(attempt=1), lost=[("a", "keys")])


def test_other_rounds_and_smaller_rosters_have_fresh_noise_and_are_opened(world):
    attempt(world, world.scene(), lost=[("e", "masked sums")])
    assert attempt(world, world.scene(round_index=1)).senders == world.participants.names
    smaller = World(world.participants.without("e"), memories=world.memories)
    assert attempt(smaller, smaller.scene(attempt=1)).senders == tuple("abcd")


def test_the_set_of_senders_is_on_disk_before_a_share_is_sent(world):
    scene = world.scene()
    machines, _ = summed(world, scene)
    senders = Senders(senders=frozenset(range(5)))
    signed = {place: decode(reported(machines[place], senders, scene), SignedSenders, scene) for place in machines}

    def full(key, value):
        raise OSError("no space left on device")

    world.memories["a"].remember = full
    with pytest.raises(OSError, match="no space"):
        reported(machines[0], Signatures(frames=signed), scene)
    del world.memories["a"].remember
    answer = reported(machines[0], Signatures(frames=signed), scene)
    assert answer[5] == OpeningShares.kind


# --- the state machine of a site: log, errors and size limits ---


def test_refusals_are_logged_without_content(world, caplog):
    machine = world.machine("a", world.scene())
    secret = b"A" * 300
    with caplog.at_level(logging.WARNING, logger="dpca.sites"), pytest.raises(MessageRefused):
        machine.receive(secret)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "AAAA" not in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


def test_a_site_that_cannot_sum_reports_the_reason_and_sends_nothing(world):
    scene = world.scene()
    machines, frames, _ = shared(world, scene)
    machine = machines[0]
    session = machine._phase.session
    for contribute, refusal in (
        (lambda masks: np.zeros(5, np.uint64), "got 5 integers, masked 0 times"),
        (
            lambda masks: masks.mask(scene.context.address, roster=world.participants.roster, size=4),
            "are for another attempt",
        ),
    ):
        object.__setattr__(session, "contribute", contribute)
        with pytest.raises((MessageRefused, InvalidInput), match=refusal):
            machine.receive(frames[0])


def test_a_site_reads_at_most_the_bytes_of_a_frame_of_its_phase(world):
    scene = world.scene()
    machine = world.machine("a", scene)
    assert len(propose(scene)) <= machine.longest < 600
    assert Begin.longest(scene) < 600
