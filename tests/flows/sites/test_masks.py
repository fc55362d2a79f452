"""Masks of sites: the helper deals one seed per pair; secure sums agree on masks without it and remember attempts."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.tensor import TensorComponents
from dpca.registry.reader import Registry
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.roster import Address, MaskSeeds
from flows.demo import Federation, aggregator, await_listening, make_federation, running, start, stop
from flows.parties.calling import Caller, Frame, packed, unpacked
from flows.parties.certificates import make_identity, signing_identity, signing_key_of
from flows.sites import releases as stages
from flows.sites.masks import Dealer, FileMemory, longest_exchange
from flows.sites.parties import RosterSites
from flows.sites.releases import fit_sites_directly
from flows.sites.roster import RosterFile, read_roster
from storage.workspace import Workspace
from tests.dpca_tasks.sites.secure_sum.scenes import roster_of
from tests.flows.sites.conftest import (
    METHODS,
    SHARED,
    TOPICS,
    check_same,
    check_topics,
    computed,
    documents,
    planned_of,
    released_alone,
    request,
    silent,
)
from tests.flows.sites.test_roster import written

NAMES = ["a", "b", "c"]
FACTS = {"dealing": "d", "release": "r", "names": NAMES, "round": 0, "attempt": 0, "roster": "0", "requested": "q"}


@pytest.fixture(scope="module")
def roster(tmp_path_factory: pytest.TempPathFactory) -> RosterFile:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("aggregator", "helper", *NAMES):
        make_identity(name, folder)
    return read_roster(written(folder, timeout=10))


def test_masks_of_dealt_seeds_cancel_and_the_helper_erases_the_seeds(roster: RosterFile) -> None:
    dealer = Dealer(roster)
    dealt = {name: dealer.seeds(name, FACTS) for name in NAMES[:1]}
    assert dealer.held == 3
    dealt["b"] = dealer.seeds("b", FACTS)
    assert dealer.held == 2
    dealt["c"] = dealer.seeds("c", FACTS)
    assert dealer.held == 0
    for one, other in combinations(NAMES, 2):
        assert dealt[one][other] == dealt[other][one]
    seen = {seed for seeds in dealt.values() for seed in seeds.values()}
    assert len(seen) == 3
    made = roster_of(3)
    masks = [
        MaskSeeds(site=name, shared={other: SecretKey(seed) for other, seed in seeds.items()}).mask(
            Address(round=0), roster=made, size=5
        )
        for name, seeds in dealt.items()
    ]
    assert sum(masks).tolist() == [0] * 5  # type: ignore[union-attr]


def test_each_dealing_has_fresh_seeds(roster: RosterFile) -> None:
    dealer = Dealer(roster)
    first, second = (dealer.seeds("a", {**FACTS, "dealing": name}) for name in ("one", "two"))
    assert not set(first.values()) & set(second.values())


@pytest.mark.parametrize(
    ("caller", "change", "message"),
    [
        ("a", {}, "or this site already received its seeds"),
        ("b", {"round": 1}, "belongs to another attempt"),
        ("b", {"attempt": 1}, "belongs to another attempt"),
        ("b", {"roster": "1"}, "belongs to another attempt"),
        ("b", {"requested": "another query"}, "belongs to another attempt"),
        ("b", {"names": ["a", "b"]}, "belongs to another attempt"),
        ("a", {"dealing": "new", "names": ["b", "c"]}, "including the caller"),
        ("a", {"dealing": "new", "names": ["a"]}, "each once"),
        ("a", {"dealing": "new", "names": ["a", "a"]}, "each once"),
        ("a", {"dealing": "new", "names": ["a", "x"]}, "sites of the roster"),
        ("x", {"dealing": "new"}, "including the caller"),
        ("a", {"dealing": "new", "round": "0"}, "a request for seeds has unexpected facts"),
        ("a", {"dealing": 300 * "n"}, "a request for seeds has unexpected facts"),
    ],
)
def test_a_repeated_or_inconsistent_request_for_seeds_is_refused(
    roster: RosterFile, caller: str, change: dict[str, object], message: str
) -> None:
    dealer = Dealer(roster)
    dealer.seeds("a", FACTS)
    with pytest.raises(Refused, match=message):
        dealer.seeds(caller, {**FACTS, **change})
    assert dealer.seeds("b", FACTS).keys() == {"a", "c"}


def test_unfetched_seeds_are_erased_and_late_sites_get_none(roster: RosterFile) -> None:
    now = [0.0]
    dealer = Dealer(roster, clock=lambda: now[0])
    dealer.seeds("a", FACTS)
    now[0] = 2 * roster.timeout + 1
    with pytest.raises(Refused, match="request another dealing"):
        dealer.seeds("b", FACTS)
    assert dealer.held == 0


@pytest.fixture(scope="module")
def participants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("participants")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        made = make_federation(
            folder,
            3,
            features=12,
            records=150,
            rows_of=documents,
            colluders=0,
            dropouts=1,
            attempts=2,
            timeout=20,
            masks="secure_sum",
        )
    with running(made):
        yield made


@pytest.mark.parametrize("method", SHARED[:3])
def test_processes_without_a_helper_release_the_arrays_of_one_process(participants: Federation, method: str) -> None:
    requested = request(participants, **METHODS[method], run_key="bits")
    releases, artifact = computed(participants, requested)
    check_same(artifact, released_alone(participants, planned_of(requested), releases))


@pytest.mark.parametrize("phase", [2, 4])
def test_a_killed_site_voids_or_leaves_the_attempt_and_a_new_one_succeeds(
    participants: Federation, monkeypatch: pytest.MonkeyPatch, phase: int
) -> None:
    """Kill one of three sites in phase 2 or 4 of a secure sum: a second attempt must succeed.

    The second attempt includes all sites, with the same noise.
    """
    name = participants.names[1]
    requested = request(participants, run_key=f"killed-in-{phase}")
    call, seen = Caller.call, []

    def killing(caller, path, *others, **more):
        if caller.name == name and path.endswith("/agree"):
            seen.append(path)
            if len(seen) == phase:
                process = participants.processes[name]
                process.kill()
                stop(process)
                participants.processes[name] = start(participants, name)
                await_listening(participants, name, participants.processes[name])
        return call(caller, path, *others, **more)

    monkeypatch.setattr(Caller, "call", killing)
    _, artifact = computed(participants, requested)
    monkeypatch.setattr(Caller, "call", call)
    assert len(seen) >= phase
    _, again = computed(participants, requested)
    np.testing.assert_array_equal(artifact.components, again.components)


@pytest.mark.parametrize("lost_in", [0, 1])
def test_components_are_released_by_a_secure_sum_that_loses_a_site(
    participants: Federation, monkeypatch: pytest.MonkeyPatch, lost_in: int
) -> None:
    """Lose one of three sites during a secure sum: the result must be the sum of the others, with the same noise."""
    name = participants.names[1]
    monkeypatch.setattr(Caller, "call", silent(name, first=lost_in))
    with aggregator(participants):
        requested = request(participants, **TOPICS, run_key=f"lost-in-{lost_in}")
        report = fit_sites_directly(requested)
        found = Registry.open().load(report["artifact"], TensorComponents)
    check_topics(found)
    assert [site["site"] for site in report["sites"]] == [one for one in participants.names if lost_in or one != name]


def test_frames_of_unknown_attempts_and_truncated_frames_are_refused(participants: Federation) -> None:
    requested = request(participants, run_key="stray")
    with aggregator(participants):
        stages.reserve_sites(requested)
        planned = planned_of(requested)
        roster = planned.plan.roster
        assert roster is not None
        about = {"round": 0, "attempt": 0, "names": list(roster.names), "roster": roster.digest.hex()}
        with RosterSites(requested, Workspace.open()) as sites:
            party = sites.parties[participants.names[0]]
            for raw, message in (
                (bytes(50), "this attempt is not in progress"),
                (b"dpca\1\1" + bytes(50), "within a field"),
            ):
                facts, arrays = packed(raw)
                with pytest.raises(Refused, match=message):
                    party.call("agree", about | facts, arrays=arrays)
            with pytest.raises(Refused, match="incomplete frame"):
                party.call("agree", about | {"length": 9})
            with pytest.raises(Refused, match="more than the"):
                party.call("agree", about | {"length": 80_000}, arrays={"frame": np.ones(100_000, np.uint64)})


def test_frames_are_encoded_as_words_and_decoded_unchanged() -> None:
    for size in (0, 1, 7, 8, 9, 1000):
        raw = bytes(range(256)) * 4
        facts, arrays = packed(raw[:size])
        assert unpacked(Frame(facts=facts, arrays=arrays)) == raw[:size]
        for length in (size + 8, size - 8, -1):
            with pytest.raises(Refused, match="incomplete frame"):
                unpacked(Frame(facts={"length": length}, arrays=arrays))
    assert longest_exchange(3) < 4096


def test_the_value_stored_first_is_kept(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path / "memory")
    assert memory.recall(b"key") is None
    assert memory.remember(b"key", b"first") == b"first"
    assert memory.remember(b"key", b"second") == b"first"
    assert FileMemory(tmp_path / "memory").recall(b"key") == b"first"
    assert memory.remember(b"other", b"") == b""
    assert [path.name for path in sorted((tmp_path / "memory").iterdir())] == sorted([b"key".hex(), b"other".hex()])


def test_a_roster_for_which_a_dishonest_server_could_open_two_sums_is_refused(
    participants: Federation, tmp_path: Path
) -> None:
    text = participants.roster.read_text()
    for path in participants.folder.glob("*.pem"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "roster.yaml").write_text(text.replace("colluders: 0", "colluders: 1"))
    with pytest.raises(InvalidInput, match=r"2 \(sites - dropouts\) is not above sites \+ colluders"):
        read_roster(tmp_path / "roster.yaml")


def test_a_sites_signing_key_is_that_of_its_certificate(participants: Federation) -> None:
    key, pem = participants.folder / "site-0.key", (participants.folder / "site-0.pem").read_text()
    assert signing_identity(key).public == signing_key_of(pem)
    with pytest.raises(InvalidInput, match="not an Ed25519 key"):
        signing_identity(participants.folder / "site-0.pem")
