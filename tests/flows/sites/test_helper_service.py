"""The helper deals each pair one seed, each site once, and erases what both have."""

from itertools import combinations

import pytest

from dpca_tasks.errors import Refused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.masks import Address, MaskSeeds
from flows.parties.certificates import make_identity
from flows.sites.helper_service import Dealer
from flows.sites.roster_file import RosterFile, read_roster
from tests.dpca_tasks.sites.rosters import roster_of
from tests.flows.sites.test_roster_file import written

NAMES = ["a", "b", "c"]
FACTS = {"dealing": "d", "release": "r", "names": NAMES, "round": 0, "attempt": 0, "roster": "0", "asked": "q"}


@pytest.fixture(scope="module")
def roster(tmp_path_factory: pytest.TempPathFactory) -> RosterFile:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("aggregator", "helper", *NAMES):
        make_identity(name, folder)
    return read_roster(written(folder, timeout=10))


def test_masks_of_dealt_seeds_cancel_and_the_helper_then_holds_none(roster: RosterFile) -> None:
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


def test_other_dealings_have_other_seeds(roster: RosterFile) -> None:
    dealer = Dealer(roster)
    first, second = (dealer.seeds("a", {**FACTS, "dealing": name}) for name in ("one", "two"))
    assert not set(first.values()) & set(second.values())


@pytest.mark.parametrize(
    ("caller", "change", "said"),
    [
        ("a", {}, "was dealt to this site"),
        ("b", {"round": 1}, "of another attempt"),
        ("b", {"attempt": 1}, "of another attempt"),
        ("b", {"roster": "1"}, "of another attempt"),
        ("b", {"asked": "another query"}, "of another attempt"),
        ("b", {"names": ["a", "b"]}, "of another attempt"),
        ("a", {"dealing": "new", "names": ["b", "c"]}, "the caller among them"),
        ("a", {"dealing": "new", "names": ["a"]}, "each once"),
        ("a", {"dealing": "new", "names": ["a", "a"]}, "each once"),
        ("a", {"dealing": "new", "names": ["a", "x"]}, "sites of the roster"),
        ("x", {"dealing": "new"}, "the caller among them"),
        ("a", {"dealing": "new", "round": "0"}, "other facts than planned"),
        ("a", {"dealing": 300 * "n"}, "other facts than planned"),
    ],
)
def test_a_second_time_another_attempt_or_other_sites_are_refused(
    roster: RosterFile, caller: str, change: dict[str, object], said: str
) -> None:
    dealer = Dealer(roster)
    dealer.seeds("a", FACTS)
    with pytest.raises(Refused, match=said):
        dealer.seeds(caller, {**FACTS, **change})
    assert dealer.seeds("b", FACTS).keys() == {"a", "c"}


def test_seeds_that_nobody_fetched_are_erased_and_who_is_late_gets_none(roster: RosterFile) -> None:
    now = [0.0]
    dealer = Dealer(roster, clock=lambda: now[0])
    dealer.seeds("a", FACTS)
    now[0] = 2 * roster.timeout + 1
    with pytest.raises(Refused, match="ask under another"):
        dealer.seeds("b", FACTS)
    assert dealer.held == 0
