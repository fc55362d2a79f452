"""A release whose ledger is apart is the one that it would be here, whatever answers are lost and wherever it stops."""

from pathlib import Path

import pytest

from flows.parties.frames import decode, encode
from flows.remote_ledger.client import LedgerCaller, RemoteKeys
from flows.remote_ledger.messages import PROTOCOL
from storage import errors
from storage.backends import crash_points
from storage.errors import BudgetExhausted, Corrupt, Finished, NotFound, Refused, Unavailable
from tests.flows.conftest import FIT, Command
from tests.flows.remote_ledger.apart import PEOPLE, Apart, Loopback

ROUTES = (
    *("identify", "budget", "statement", "quote", "find", "current", "snapshot", "alerts", "reserve", "release"),
    *("begin", "key", "step", "keep", "publish"),
)


class Stopped(Exception):
    """The process was killed."""


def test_every_answer_may_be_lost_once(apart: Apart, dpca: Command) -> None:
    apart.caller.cut = set(ROUTES)
    done = dpca(*FIT, "--direct", "--yes", "--json")
    assert done.status == 0, done
    assert sorted(apart.caller.lost) == sorted(ROUTES)
    (release,) = apart.ledger.statement(PEOPLE).releases
    assert release.state == "committed"
    names = apart.journal()
    for name in ("release_reserved", "release_begun", "step_kept", "release_committed", "version_published"):
        assert names.count(name) == 1, name
    apart.ledger.verify()
    assert "nothing was spent" in dpca(*FIT, "--direct", "--yes").err
    shown = dpca("budget", "show", PEOPLE, "--json").out
    assert release.id in shown
    assert '"sub@1"' in shown
    assert dpca("budget", "history", PEOPLE).status == 0


@pytest.mark.parametrize("point", ["keep.row_committed", "commit.row_written"])
def test_a_release_that_stopped_goes_on(
    apart: Apart, dpca: Command, home: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def stop(reached: str) -> None:
        if reached == point:
            raise Stopped

    monkeypatch.setattr(crash_points, "hook", stop)
    assert dpca(*FIT, "--direct", "--yes").status == 1
    monkeypatch.setattr(crash_points, "hook", None)
    (release,) = apart.ledger.statement(PEOPLE).releases
    assert release.state == "noising"
    assert list((home / "staging" / release.id).iterdir())
    again = dpca(*FIT, "--direct", "--yes")
    assert again.status == 0, again
    (release,) = apart.ledger.statement(PEOPLE).releases
    assert (release.state, apart.journal().count("step_kept")) == ("committed", 1)
    assert not (home / "staging" / release.id).exists()


def test_steps_that_a_crash_left_are_removed_when_their_release_ended(apart: Apart, dpca: Command, home: Path) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0
    (release,) = apart.ledger.statement(PEOPLE).releases
    ours, others = home / "staging" / release.id, home / "staging" / ("0" * 32)
    for folder in (ours, others):
        folder.mkdir(parents=True)
    assert dpca(*FIT, "--direct", "--yes").status == 0
    assert (ours.exists(), others.exists()) == (False, True)


def test_a_release_without_privacy_is_not_made_here(apart: Apart, dpca: Command) -> None:
    words = [word for word in FIT if word not in ("--epsilon", "1", "--delta", "1e-6")]
    line = dpca(*words, "--mechanism", "non_private", "--i-know-this-is-not-private", "--direct", "--yes").complaint(1)
    assert "made where the ledger runs" in line
    assert apart.ledger.statement(PEOPLE).releases == ()


def test_what_needs_the_database_is_refused_and_makes_none(apart: Apart, dpca: Command, home: Path) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0
    for words in (
        ("dataset", "list"),
        ("budget", "open", PEOPLE, "--epsilon", "9", "--delta", "1e-6"),
        ("budget", "abandon", "0" * 32),
        ("stream", "list"),
        ("registry", "promote", "sub@1", "champion"),
        ("backup", "create", "copy"),
    ):
        ended = dpca(*words)
        assert ended.status == 1, ended
        assert "run it where `dpca ledger serve` runs" in ended.err
    assert not list(home.glob("*.sqlite*"))


def test_rights_beside_a_remote_ledger_are_refused(
    apart: Apart, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_DATABASE_URL", "sqlite:////somewhere")
    assert "are both set" in dpca("budget", "show", PEOPLE).complaint(1)
    monkeypatch.delenv("DPCA_DATABASE_URL")
    monkeypatch.setenv("DPCA_LEDGER_URL", "http://127.0.0.1:1")
    assert "must be https" in dpca("budget", "show", PEOPLE).complaint(1)
    monkeypatch.setenv("DPCA_LEDGER_URL", "https://127.0.0.1:1")
    monkeypatch.delenv("DPCA_LEDGER_KEY")
    assert "needs DPCA_LEDGER_CERT" in dpca("budget", "show", PEOPLE).complaint(1)


def test_refusals_are_raised_as_they_were_with_their_line() -> None:
    caller = LedgerCaller.__new__(LedgerCaller)
    for kind in (BudgetExhausted, Finished, NotFound, Refused, Unavailable, errors.Conflict, errors.Invalid):
        said = decode(encode({"kind": kind.__name__, "line": "what, why, next."}), most=0)
        with pytest.raises(kind, match=r"^what, why, next\.$") as raised:
            caller.refuse(409, said)
        assert type(raised.value) is kind
    with pytest.raises(Refused, match="its log tells of what kind"):
        caller.refuse(500, None)
    with pytest.raises(Refused, match="line"):
        caller.refuse(409, decode(encode({"kind": "SystemExit", "line": "line"}), most=0))


def test_another_version_and_another_key_are_refused(
    apart: Apart, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def ask(self, name: str, **_: object) -> str:
            return bytes(32).hex()

    with pytest.raises(Corrupt, match="another key"):
        RemoteKeys(Other()).read("0" * 32)  # type: ignore[arg-type]
    monkeypatch.setattr(apart.service, "_identify", lambda *_: {"ledger": "x", "protocol": PROTOCOL + 1})
    apart.caller = Loopback(apart.service, "runner")
    assert "another version" in dpca("budget", "show", PEOPLE).complaint(1)


def test_a_ledger_that_stays_silent_is_unavailable(apart: Apart, dpca: Command) -> None:
    apart.caller.cut, apart.caller.for_good = {"statement"}, True
    assert "does not answer" in dpca("budget", "show", PEOPLE).complaint(1)


@pytest.mark.parametrize(
    "more",
    [
        ("--clip-norm", "quantile:0.9"),
        ("--center", "private", "--row-policy", "normalise", "--components", "auto"),
        ("--refine", "eb"),
    ],
    ids=" ".join,
)
def test_what_is_asked_for_is_published_under_another_name_too(
    apart: Apart, dpca: Command, more: tuple[str, ...]
) -> None:
    """What an artifact states is compared with what is worked out here, for whatever a request asks."""
    done = dpca(*FIT, *more, "--direct", "--yes")
    assert done.status == 0, done
    again = dpca(*FIT, *more, "--publish", "other", "--direct", "--yes")
    assert "nothing was spent" in again.err, again
    assert apart.journal().count("version_published") == 2
