"""Services of sites: a site answers only the aggregator, as planned and once per dealing of masks.

All other requests are refused in one line. A site whose home is rolled back between two rounds answers nothing until
the newest home is back. The site keeps running, with the release's curator in memory and an accepted certificate.
"""

import dataclasses
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dpca.errors import BudgetExhausted, StorageError
from dpca_tasks.errors import DpcaError, Refused, SiteSilent
from flows.demo import Federation, aggregator
from flows.parties.calling import OVERHEAD, Caller, Post, decode, encode
from flows.parties.certificates import calling_context, make_identity
from flows.sites import releases as stages
from flows.sites.roster import read_roster
from tests.flows.sites.conftest import METHODS, at_home, logs, planned_of, request

OPEN: list[Caller] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def caller(federation: Federation, name: str = "site-0", *, shown: str = "aggregator", **others: Any) -> Caller:
    roster = read_roster(federation.roster)
    post: Post | None = roster.helper if name == "helper" else roster.site(name)
    assert post is not None
    key = federation.folder / f"{shown}.key"
    post = dataclasses.replace(post, **others)
    OPEN.append(Caller(post, certificate=key.with_suffix(".pem"), key=key, timeout=20.0))
    return OPEN[-1]


def test_callers_other_than_the_aggregator_of_the_roster_are_refused(federation: Federation) -> None:
    """Connect with unknown certificates, and with those of another site and of the helper: all are refused."""
    make_identity("stranger", federation.folder)
    for shown in ("stranger", "site-1", "helper"):
        # the caller reports the service's reason, or a closed connection
        with pytest.raises((Refused, SiteSilent), match="certificate"):
            caller(federation, shown=shown).call("/v1/status", {})
    for shown in ("stranger", "aggregator"):
        with pytest.raises((Refused, SiteSilent), match="certificate"):
            caller(federation, "helper", shown=shown).call("/v1/seeds", {})
    assert caller(federation).call("/v1/status", {}).fact("site", str) == "site-0"


def test_a_site_that_presents_another_sites_certificate_is_refused(federation: Federation) -> None:
    roster = read_roster(federation.roster)
    swapped = caller(federation, certificate=roster.site("site-1").certificate)
    with pytest.raises(Refused, match="do not accept each other's certificates"):
        swapped.call("/v1/status", {})


def test_an_expired_certificate_is_refused_on_either_side(tmp_path: Path) -> None:
    """Connect two TLS contexts that pin each other's certificates, one of which expired a minute ago: both refuse."""
    make_identity("sound", tmp_path)
    make_identity("old", tmp_path, lifetime=-timedelta(minutes=1))
    from flows.parties.certificates import listening_context

    def shake(server: str, client: str) -> None:
        files = {name: (tmp_path / f"{name}.pem", tmp_path / f"{name}.key") for name in (server, client)}
        pem = {name: path.read_text() for name, (path, _) in files.items()}
        ours = listening_context(certificate=files[server][0], key=files[server][1], peers=[pem[client]])
        theirs = calling_context(certificate=files[client][0], key=files[client][1], peer=pem[server])
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        one = ours.wrap_bio(there, back, server_side=True)
        other = theirs.wrap_bio(back, there)
        for _ in range(4):
            for side in (other, one):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        one.getpeercert(binary_form=True)

    shake("sound", "sound")
    for server, client in (("old", "sound"), ("sound", "old")):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            shake(server, client)


def reserved(federation: Federation, run_key: str, **others: Any) -> Any:
    with aggregator(federation):
        requested = request(federation, run_key=run_key, **others)
        planned = planned_of(requested)
        stages.reserve_sites(requested)
    return planned


def message(planned: Any, **others: Any) -> dict[str, Any]:
    made = planned.plan.roster
    facts = {"round": 0, "attempt": 0, "dealing": os.urandom(8).hex(), "names": list(made.names)}
    return {**facts, "roster": made.digest.hex(), **others}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a round after the last": ({"round": 1}, "round 1 with the arrays none is not one of the 1 planned"),
    "a round before the first": ({"round": -1}, "round=-1 and attempt=0 must be at least 0"),
    "a round that is no number": ({"round": "0"}, "lacks round"),
    "a forged roster": ({"roster": "0" * 64}, "list of sites in this round differs from the list that"),
    "a stranger among the sites": ({"names": ["site-0", "site-1", "x"]}, "not in the roster, or this site is missing"),
    "without this site": ({"names": ["site-1", "site-2"]}, "not in the roster, or this site is missing"),
    "this site alone": ({"names": ["site-0"]}, "1 sites are left"),
    "a site twice": ({"names": ["site-0", "site-0", "site-1"]}, "not in the roster"),
    "no dealing": ({"dealing": 3}, "lacks dealing"),
}


def test_messages_that_are_not_planned_are_refused_in_one_line_and_logged_without_content(
    federation: Federation,
) -> None:
    planned = reserved(federation, "refusals")
    path, session = f"/v1/releases/{planned.place}", caller(federation)
    for change, text in REFUSED.values():
        with pytest.raises(Refused, match=text) as refusal:
            session.call(f"{path}/message", message(planned, **change), most=10_000)
        assert "\n" not in str(refusal.value)
    secret = np.full((12, 2), 7_777_777_777_777, np.int64)
    with pytest.raises(Refused, match="more than the"):
        session.call(f"{path}/message", message(planned), {"directions": np.ones((9000, 2)) * 7e12})
    with pytest.raises(Refused, match="malformed"):
        session.call(f"{path}/message", message(planned), {"directions": secret})
    with pytest.raises(Refused, match="no reservation for this release"):
        session.call(f"/v1/releases/{'0' * 32}/message", message(planned))
    with pytest.raises(Refused, match="sites send no separate release"):
        session.call(f"{path}/part", {})
    text = logs(federation)
    assert text.count("refused route=") >= len(REFUSED)
    assert "777777" not in text
    assert planned.plan.roster.digest.hex() not in text
    with at_home(federation, "site-0") as home:
        (row,) = (one for one in home.ledger.statement("rows").releases if one.request["run_key"] == "refusals")
    assert row.state == "reserved", "nothing of it was noised"


def test_a_dealing_is_answered_once_and_a_resend_has_the_same_integers_under_another_mask(
    federation: Federation,
) -> None:
    planned = reserved(federation, "replayed")
    path = f"/v1/releases/{planned.place}/message"
    totals, seen = [], []
    for dealing in ("first-dealing", "second-dealing"):
        words = []
        for name in federation.names:
            answer = caller(federation, name).call(path, message(planned, dealing=dealing), most=8 * 78)
            words.append(answer.arrays["words"])
        with pytest.raises(Refused, match="already used this dealing"):
            caller(federation).call(path, message(planned, dealing=dealing), most=8 * 78)
        totals.append(sum(words, np.zeros(78, np.uint64)))
        seen.append(np.concatenate(words))
    np.testing.assert_array_equal(totals[0], totals[1])
    assert not np.isin(seen[0], seen[1]).any()


def test_sites_with_different_attempts_do_not_both_answer_under_one_dealing(federation: Federation) -> None:
    """Name different attempts to two sites under one dealing of masks: only one site may answer.

    The helper deals masks for one attempt.
    """
    planned = reserved(federation, "equivocation")
    path = f"/v1/releases/{planned.place}/message"
    smaller = planned.plan.roster.without("site-2")
    reported = message(planned, dealing="one", names=list(smaller.names), roster=smaller.digest.hex())
    caller(federation).call(path, message(planned, dealing="one"), most=8 * 78)
    with pytest.raises(Refused, match="belongs to another attempt"):
        caller(federation, "site-1").call(path, reported, most=8 * 78)


def test_sites_refuse_broadcast_inputs_that_are_unplanned_or_differ_between_sites(
    federation: Federation,
) -> None:
    """Change the directions, variance or bound that the server sends for the second round: sites must refuse them.

    Each site checks form and range, and that all sites of a dealing received the same values.
    """
    planned = reserved(federation, "broadcasts", **METHODS["cape_agn of a known variance"])
    path, session = f"/v1/releases/{planned.place}/message", caller(federation)
    fine = dict(planned.mechanism.inputs(planned.plan, index=1))
    directions = fine["directions"]
    for change, text in (
        ({"directions": np.eye(12, 3, dtype=np.int64) << 24}, "malformed"),
        ({"directions": directions[:11]}, "not one of the 2 planned"),
        ({"directions": 3 * directions}, "differ from orthonormal columns"),
        ({"noise_variance": np.array([0.26])}, "noise_variance=0.26 must be 0.25"),
        ({"score_norm": 2 * fine["score_norm"]}, "score_norm"),
        ({"more": np.zeros(1)}, "malformed"),
    ):
        with pytest.raises(Refused, match=text) as refusal:
            session.call(path, message(planned, round=1), {**fine, **change}, most=8 * 4)
        assert "\n" not in str(refusal.value)
    with pytest.raises(Refused, match="more than the"):
        session.call(path, message(planned, round=1), {**fine, "directions": np.ones((9000, 2))})
    with at_home(federation, "site-0") as home:
        (row,) = (one for one in home.ledger.statement("rows").releases if one.request["run_key"] == "broadcasts")
    assert row.state == "reserved", "nothing of it was noised"
    session.call(path, message(planned, round=1, dealing="other directions"), fine, most=8 * 4)
    other = {**fine, "directions": directions[:, ::-1]}
    reported = message(planned, round=1, dealing="other directions")
    with pytest.raises(Refused, match="belongs to another attempt"):
        caller(federation, "site-1").call(path, reported, other, most=8 * 4)


@pytest.mark.parametrize(
    "change",
    [{"model": "topics"}, {"words_at_most": 5}, {"noise_variance": 0.26}, {"noise_variance": 1e9}, {"model": "x"}],
)
def test_an_unplanned_model_is_not_charged(federation: Federation, change: dict[str, Any]) -> None:
    with aggregator(federation):
        requested = request(federation, run_key="models", **METHODS["cape_agn of a known variance"])
        facts = planned_of(requested).facts
    text = "joint plan of this request differs|model=|must be"
    for route in ("quote", "reserve"):
        with pytest.raises(Refused, match=text) as refusal:
            caller(federation).call(f"/v1/{route}", {**facts, **change})
        assert "\n" not in str(refusal.value)
    with at_home(federation, "site-0") as home:
        assert [one for one in home.ledger.statement("rows").releases if one.request["run_key"] == "models"] == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"plan": "0" * 64}, "joint plan of this request differs from this site's plan"),
        ({"roster": "0" * 64}, "roster of this request differs from this site's roster"),
        ({"epsilon": 2.0}, "joint plan of this request differs"),
        ({"epsilon": 1e9}, "the most that this site's operator admits"),
        ({"delta": 0.1}, "the most that this site's operator admits"),
        ({"method": "conv_agn"}, "not a method that this site's operator admits"),
        ({"method": "best"}, "method='best' is not one of"),
        ({"epsilon": "1"}, "facts that this version does not support"),
        ({"snapshot": "1"}, "facts that this version does not support"),
        ({"settings": {"a": 1}}, "settings that are not text"),
        ({"components": 99}, "n_components=99"),
        ({"run_key": "a key with\nlines"}, "run key"),
    ],
)
def test_a_request_with_other_numbers_or_beyond_the_limits_is_not_charged(
    federation: Federation, change: dict[str, Any], text: str
) -> None:
    with aggregator(federation):
        facts = planned_of(request(federation, run_key="lies")).facts
    for route in ("quote", "reserve"):
        with pytest.raises(Refused, match=text):
            caller(federation).call(f"/v1/{route}", {**facts, **change})
    with at_home(federation, "site-0") as home:
        assert [one for one in home.ledger.statement("rows").releases if one.request["run_key"] == "lies"] == []


def test_one_spent_budget_refuses_the_joint_release_and_nobody_is_charged(federation: Federation) -> None:
    requested = request(federation, run_key="dear", epsilon=99.9)
    with at_home(federation, "site-2") as home:
        before = home.ledger.statement("rows").spent
    with aggregator(federation), pytest.raises(BudgetExhausted, match=r"site-\d: "):
        stages.reserve_sites(requested)
    for name in federation.names:
        with at_home(federation, name) as home:
            assert [o for o in home.ledger.statement("rows").releases if o.request["run_key"] == "dear"] == []
    with at_home(federation, "site-2") as home:
        assert home.ledger.statement("rows").spent == before


def test_malformed_and_truncated_frames_are_refused_and_the_service_continues(federation: Federation) -> None:
    roster = read_roster(federation.roster)
    site, key = roster.site("site-0"), federation.key
    context = calling_context(certificate=key.with_suffix(".pem"), key=key, peer=site.certificate)
    with httpx.Client(base_url=str(site.address), verify=context, trust_env=False) as client:
        for body in (b"", b"\x80\x04\x95.", encode({"round": 1})[:-2]):
            answer = client.post("/v1/quote", content=body)
            assert answer.status_code == 409
            assert "malformed" in decode(answer.content, most=0).fact("line", str)
        assert client.post("/v1/quote", content=bytes(OVERHEAD + 1)).status_code == 409
        assert client.get("/v1/status").status_code == 405
        assert client.post("/v1/else").status_code == 404
    host, port = str(site.address).removeprefix("https://").split(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as cut:
        cut.sendall(b"POST /v1/quote HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\nDPCA1")
    assert caller(federation).call("/v1/status", {}).fact("site", str) == "site-0"


def test_a_site_that_does_not_answer_in_time_is_treated_as_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        folder = Path(os.environ["DPCA_STATE_FOLDER"])
        make_identity("deaf", folder)
        pem = (folder / "deaf.pem").read_text()
        post = Post(name="deaf", address=f"https://127.0.0.1:{deaf.getsockname()[1]}", certificate=pem)
        session = Caller(post, certificate=folder / "deaf.pem", key=folder / "deaf.key", timeout=0.3)
        OPEN.append(session)
        with pytest.raises(SiteSilent, match="deaf did not answer"):
            session.call("/v1/status", {})


SITE = "site-1"


@contextmanager
def rolled_back(federation: Federation, copy: Path) -> Iterator[None]:
    """Replace the home of a site by an older copy, and restore the newest home at the end of the context."""
    home = federation.home(SITE)
    newest = home.with_name("newest")
    home.rename(newest)
    shutil.copytree(copy, home)
    yield
    shutil.rmtree(home)
    newest.rename(home)


@pytest.mark.parametrize("since", ["before the release", "after its first round"])
def test_a_site_rolled_back_between_rounds_refuses_until_its_home_is_restored(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    requested = request(federation, **METHODS["dps_pca"], run_key=f"rolled back to {since}")
    copy, answered, call = tmp_path / "copy", list[int](), Caller.call
    with aggregator(federation):
        if since == "before the release":
            shutil.copytree(federation.home(SITE), copy)
        releases = stages.reserve_sites(requested)

        def stop_after_two(caller: Caller, path: str, facts: Any, *others: Any, **more: Any) -> Any:
            is_message = caller.name == SITE and path.endswith("/message")
            if is_message and len(answered) == 1 and not copy.exists():
                shutil.copytree(federation.home(SITE), copy)
            if is_message and len(answered) == 2:
                raise KeyboardInterrupt
            frame = call(caller, path, facts, *others, **more)
            if is_message:
                answered.append(facts["round"])
            return frame

        with monkeypatch.context() as patch:
            patch.setattr(Caller, "call", stop_after_two)
            with pytest.raises(KeyboardInterrupt):
                stages.compute_sites(requested, releases, "")
        assert answered == [0, 1]
        with rolled_back(federation, copy):
            before = (federation.home(SITE) / "dpca.sqlite").read_bytes()
            with pytest.raises((DpcaError, StorageError), match=f"{SITE}: .*restored"):
                stages.compute_sites(requested, releases, "")
            assert (federation.home(SITE) / "dpca.sqlite").read_bytes() == before
        assert "Traceback" not in logs(federation)
        digest = stages.compute_sites(requested, releases, "")
        assert len(digest) == 64
    mine = releases[SITE]
    with at_home(federation, SITE) as home:
        same = [row for row in home.ledger.statement("rows").releases if row.id == mine]
        assert [row.state for row in same] == ["noising"]
        assert home.ledger.verify() > 0
