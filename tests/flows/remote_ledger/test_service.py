"""Checks of a remote ledger: it reveals nothing about other clients, and charges nothing for refused requests."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from fastapi.routing import APIRoute

from dpca.artifacts.files import read_artifact, write_artifact
from dpca.errors import Corrupt, Finished, Invalid, NotFound, StorageError, Unavailable
from dpca.errors import Refused as NotAllowed
from dpca_tasks.accounting import events
from dpca_tasks.errors import DpcaError, InvalidInput
from flows.families.base import stored_request
from flows.parties.calling import REFUSED
from flows.parties.certificates import fingerprint_of, make_identity
from flows.releases.running import finish_release
from flows.releases.stages import plan_request
from flows.remote_ledger.messages import JSON, LONGEST_MESSAGE, Answer, Begun, written
from flows.remote_ledger.remote_workspace import Connection, RemoteLedger
from flows.remote_ledger.service import read_config
from flows.remote_ledger.workspaces import open_workspace
from flows.requests import SubspaceRequest
from storage.ledger.releases import Grant
from tests.flows.remote_ledger.conftest import PEOPLE, Loopback, RemoteHome

REQUEST = SubspaceRequest(dataset=PEOPLE, components=2, epsilon=1.0, delta=1e-6, clip_norm=1.5, publish="sub", rounds=1)


@pytest.fixture
def requested(remote: RemoteHome) -> dict[str, Any]:
    """Return the facts of a reservation request as the runner sends them."""
    planned = plan_request(open_workspace(), REQUEST)
    return {
        **{"population": PEOPLE, "run_key": planned.run_key, "fingerprint": planned.fingerprint},
        **{"event": dict(planned.plan.event), "epsilon": 1.0, "delta": 1e-6, "snapshot": planned.snapshot_id},
        "request": json.loads(json.dumps(stored_request(planned))),
    }


def refusal(remote: RemoteHome, route: str, /, *, by: str = "runner", **facts: Any) -> Exception:
    """Return the refusal of a request, which must have one line and leave the ledger's state unchanged."""
    before = remote.reported(), remote.journal()
    with pytest.raises((StorageError, DpcaError)) as refused:
        remote.call(route, by=by, **facts)
    assert (remote.reported(), remote.journal()) == before
    assert "\n" not in str(refused.value)
    return refused.value


def test_a_snapshot_of_another_population_is_not_charged_to_a_budget(
    remote: RemoteHome, requested: dict[str, Any]
) -> None:
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    found = refusal(remote, "reserve", by="others", **requested | {"population": "others"})
    assert "not of population 'others'" in str(found)
    assert isinstance(refusal(remote, "reserve", **requested | {"snapshot": "f" * 32}), NotFound)


def test_the_epsilon_that_is_stated_must_be_that_of_the_noise(remote: RemoteHome, requested: dict[str, Any]) -> None:
    quoted = {name: requested[name] for name in ("population", "event", "epsilon", "delta")}
    for epsilon in (0.0001, 0.999, 0.0, -1.0, float("inf"), float("nan"), 2**70, "1", True, None):
        request = requested["request"] | {"epsilon": epsilon}
        refusal(remote, "reserve", **requested | {"epsilon": epsilon, "request": request})
        refusal(remote, "quote", **quoted | {"epsilon": epsilon})


def test_the_ledger_prices_the_event_itself(remote: RemoteHome, requested: dict[str, Any]) -> None:
    for event in (
        events.gaussian(0.5),
        events.composed(requested["event"], events.gaussian(3.0)),
        events.non_private(),
        events.stream_tick("s", 1, 100.0),
        {"name": "gaussian", "noise_multiplier": 5.0, "more": 1},
        {"name": "gaussian", "noise_multiplier": "5"},
        {"name": "unheard of"},
    ):
        refusal(remote, "reserve", **requested | {"event": dict(event)})
    for delta in (0.0, 1.0, 1e-9, -1e-6):
        refusal(remote, "reserve", **requested | {"delta": delta, "request": requested["request"] | {"delta": delta}})
    refusal(remote, "reserve", **requested | {"request": requested["request"] | {"epsilon": 0.1}})


def test_a_release_is_charged_at_least_the_epsilon_that_it_states(
    remote: RemoteHome, requested: dict[str, Any]
) -> None:
    """Request an event that costs less than the request's epsilon: it must be refused.

    The artifact states the epsilon of the request.
    """
    for event in (events.approximate(0.0, 0.0), events.composed(requested["event"], events.approximate(0.0, 0.0))):
        assert "is charged nothing" in str(refusal(remote, "reserve", **requested | {"event": dict(event)}))
    for cheap in (events.gaussian(50.0), events.approximate(1e-300, 0.0)):
        assert "the charge must equal the stated epsilon" in str(
            refusal(remote, "reserve", **requested | {"event": dict(cheap)})
        )
    plan = requested["request"]["plan"] | {"printed": True}
    for other in (events.gaussian(50.0), events.approximate(0.0, 0.0), requested["event"]):
        refusal(
            remote, "reserve", **requested | {"event": dict(other), "request": requested["request"] | {"plan": plan}}
        )


def begun(remote: RemoteHome, requested: dict[str, Any]) -> str:
    release: str = remote.call("reserve", **requested)["release_id"]
    remote.call("begin", release=release)
    return release


def test_an_artifact_must_exist_and_belong_to_the_release(remote: RemoteHome, requested: dict[str, Any]) -> None:
    workspace = open_workspace()
    release = begun(remote, requested)
    digest = finish_release(workspace, workspace.ledger.release(release))
    for text in ("latest", "", "F" * 64, "0" * 63, "../" * 21 + "0", "0" * 64 + "\n", None, 1):
        assert isinstance(refusal(remote, "publish", release=release, name="sub", artifact=text, made=None), Invalid)
        assert isinstance(refusal(remote, "withhold", release=release, artifact=text), Invalid)
    absent = "0" * 64
    assert isinstance(refusal(remote, "publish", release=release, name="sub", artifact=absent, made=None), Corrupt)
    assert isinstance(refusal(remote, "publish", release=release, name="sub", artifact=digest, made=absent), Corrupt)
    more = requested | {"run_key": "another", "epsilon": 1.0}
    other = begun(remote, more)
    found = refusal(remote, "publish", release=other, name="sub", artifact=digest, made=None)
    assert "states another release" in str(found)
    plain = write_artifact(read_artifact(workspace.store, digest).refit(1, parent="0" * 64), home=workspace.home)
    assert "is not derived from" in str(
        refusal(remote, "publish", release=release, name="a", artifact=digest, made=plain)
    )
    assert remote.call("publish", release=release, name="sub", artifact=digest, made=None) == 1
    assert remote.call("publish", release=release, name="sub", artifact=digest, made=None) == 1
    assert isinstance(refusal(remote, "key", release=release), Finished)


FORGED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "release": lambda shown: {**shown, "release": "0" * 32},
    "mechanism": lambda shown: {**shown, "mechanism": "wishart"},
    "delta of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "delta": 1e-12}},
    "epsilon of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "epsilon": 0.1}},
    "event of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "event": events.gaussian(50.0)}},
    "relation of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "relation": "replace_one"}},
    "unit of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "unit": "household"}},
    "rows_per_unit of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "rows_per_unit": 2}},
    "statement of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "statement": "for all"}},
    "records_at_most of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "records_at_most": 9}},
    "private of privacy": lambda shown: {**shown, "privacy": {**shown["privacy"], "private": True}},
    "noise_multiplier of plan": lambda shown: {**shown, "plan": {**shown["plan"], "noise_multiplier": 0.1}},
    "certified of plan": lambda shown: {**shown, "plan": {**shown["plan"], "certified": True}},
    "center of plan": lambda shown: {**shown, "plan": {**shown["plan"], "center": "private"}},
    "clip_norm": lambda shown: {**shown, "clip_norm": 0.15},
}


def test_an_artifact_states_what_was_charged(remote: RemoteHome, requested: dict[str, Any]) -> None:
    workspace = open_workspace()
    release = begun(remote, requested)
    made = read_artifact(workspace.store, finish_release(workspace, workspace.ledger.release(release)))
    for field, forge in FORGED.items():
        shown = forge(dict(made.manifest))
        forged = write_artifact(dataclasses.replace(made, manifest=shown), home=workspace.home)
        acts: dict[str, dict[str, Any]] = {"publish": {"name": "sub", "made": None}, "withhold": {}}
        for route, more in acts.items():
            found = refusal(remote, route, release=release, artifact=forged, **more)
            assert f"states another {field} than" in str(found)


def test_a_name_published_by_another_client_is_refused(remote: RemoteHome, requested: dict[str, Any]) -> None:
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    terms = requested | {"run_key": "theirs", "fingerprint": "0" * 64}
    terms = {name: terms[name] for name in ("run_key", "fingerprint", "event", "epsilon", "delta", "request")}
    theirs = remote.ledger.reserve("others", **terms, snapshot_id=requested["snapshot"]).release_id
    remote.ledger.begin(theirs)
    assert remote.workspace.publish(theirs, name="sub", artifact_digest="0" * 64) == 1
    workspace = open_workspace()
    release = begun(remote, requested)
    digest = finish_release(workspace, workspace.ledger.release(release))
    found = refusal(remote, "publish", release=release, name="sub", artifact=digest, made=None)
    assert "'sub' has versions of populations that this client may not publish for" in str(found)
    assert remote.call("publish", release=release, name="sub2", artifact=digest, made=None) == 1


def test_a_name_just_taken_by_another_client_is_refused(
    remote: RemoteHome, requested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publish under a name that another client has just taken: it must be refused.

    The owner of a name is looked up in the transaction that publishes.
    """
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    terms = {name: requested[name] for name in ("fingerprint", "event", "epsilon", "delta", "request")}
    theirs = remote.ledger.reserve("others", **terms, run_key="theirs", snapshot_id=requested["snapshot"]).release_id
    remote.ledger.begin(theirs)
    workspace = open_workspace()
    release = begun(remote, requested)
    digest = finish_release(workspace, workspace.ledger.release(release))
    commit = remote.ledger.commit

    def late(*words: Any, **facts: Any) -> Any:
        monkeypatch.setattr(remote.ledger, "commit", commit)
        assert remote.workspace.publish(theirs, name="sub", artifact_digest="0" * 64) == 1
        return commit(*words, **facts)

    monkeypatch.setattr(remote.ledger, "commit", late)
    with pytest.raises(NotAllowed, match="'sub' has versions of populations that this client may not publish for"):
        remote.call("publish", release=release, name="sub", artifact=digest, made=None)
    assert remote.ledger.release(release).state == "noising"
    assert remote.call("publish", release=release, name="sub2", artifact=digest, made=None) == 1


def test_a_remote_client_neither_opens_nor_closes_a_stream(remote: RemoteHome, requested: dict[str, Any]) -> None:
    event, terms = events.gaussian(20.0), {"dataset": PEOPLE, "noise_multiplier": 40.0, "unit": "rows"}
    streams = remote.ledger.streams
    stream = streams.open(PEOPLE, name="night", ticks=2, event=event, epsilon=0.25, delta=1e-6, terms=terms)
    tick = streams.begin_tick("night", slot="first", fingerprint=stream.fingerprint)
    acts: dict[str, dict[str, Any]] = {
        **{"begin": {}, "key": {}, "step": {"step": 0}, "keep": {"step": 0, "digest": "0" * 64}},
        **{"publish": {"name": "night", "artifact": "0" * 64, "made": None}, "withhold": {"artifact": "0" * 64}},
    }
    for release in (stream.id, tick.release_id):
        for route, more in acts.items():
            assert "releases of one dataset" in str(refusal(remote, route, release=release, **more))
    for family in ("joint", "unheard of", None):
        found = refusal(remote, "reserve", **requested | {"request": requested["request"] | {"family": family}})
        assert "releases of one dataset" in str(found)


def test_an_invalid_step_has_no_effect(remote: RemoteHome, requested: dict[str, Any]) -> None:
    release = begun(remote, requested)
    for step in (-1, 1, 2**31, 2**70, float("nan"), float("inf"), 0.0, "0", True, None, [0]):
        refusal(remote, "step", release=release, step=step)
        refusal(remote, "keep", release=release, step=step, digest="0" * 64)
    assert remote.ledger.release(release).state == "noising"
    assert remote.call("step", release=release, step=0) is None


def test_releases_of_other_clients_are_not_revealed(remote: RemoteHome, requested: dict[str, Any]) -> None:
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    release = begun(remote, requested)
    unknown = str(refusal(remote, "release", by="others", release="0" * 32))
    routes: dict[str, dict[str, Any]] = {
        **{"release": {}, "alerts": {}, "begin": {}, "key": {}, "step": {"step": 0}},
        **{"keep": {"step": 0, "digest": "0" * 64}, "withhold": {"artifact": "0" * 64}},
        "publish": {"name": "sub", "artifact": "0" * 64, "made": None},
    }
    for route, more in routes.items():
        found = refusal(remote, route, by="others", release=release, **more)
        assert str(found).replace(release, "0" * 32) == unknown
    for route in ("budget", "statement", "history"):
        assert "has no access" in str(refusal(remote, route, by="others", population=PEOPLE))
        assert str(refusal(remote, route, population="nobody")).replace("nobody", PEOPLE) == str(
            refusal(remote, route, by="others", population=PEOPLE)
        )
    for route, name, known in (("current", "dataset", PEOPLE), ("snapshot", "snapshot", requested["snapshot"])):
        hidden = str(refusal(remote, route, by="others", **{name: known}))
        assert hidden == str(refusal(remote, route, **{name: "none"})).replace("none", known)
    assert remote.call("find", by="others", run_key=requested["run_key"]) is None
    for other in (release[:31], release.upper() + "0", [release], 1, None):
        assert isinstance(refusal(remote, "release", release=other), Invalid)


def test_a_run_key_of_another_client_is_not_revealed(remote: RemoteHome, requested: dict[str, Any]) -> None:
    """Use a run key that another client uses: neither its existence nor its release may be accessible."""
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    terms = {name: requested[name] for name in ("event", "epsilon", "delta", "request", "fingerprint")}
    theirs = remote.ledger.reserve("others", **terms, run_key="weekly", snapshot_id=requested["snapshot"]).release_id
    assert remote.call("find", run_key="weekly") is None
    ours = remote.call("reserve", **requested | {"run_key": "weekly"})
    assert (ours["is_new"], ours["release_id"] == theirs) == (True, False)
    again = remote.call("reserve", **requested | {"run_key": "weekly"})
    assert (again["is_new"], again["release_id"]) == (False, ours["release_id"])
    assert remote.call("find", run_key="weekly")["id"] == ours["release_id"]
    assert remote.call("find", by="others", run_key="weekly")["id"] == theirs
    assert remote.call("find", run_key="weekly", population=PEOPLE)["id"] == ours["release_id"]
    assert isinstance(refusal(remote, "find", run_key="weekly", population="others"), NotAllowed)


def test_a_run_key_that_two_populations_of_a_client_use_is_found_in_each(
    remote: RemoteHome, requested: dict[str, Any]
) -> None:
    """Use one run key for two populations of a client: each release is found in its population.

    One release was reserved by the ledger's own process, the other one remotely.
    """
    remote.ledger.open_budget("others", epsilon=2.0, delta=1e-6)
    terms = {name: requested[name] for name in ("event", "epsilon", "delta", "request", "fingerprint")}
    theirs = remote.ledger.reserve("others", **terms, run_key="weekly", snapshot_id=requested["snapshot"]).release_id
    ours = remote.call("reserve", **requested | {"run_key": "weekly"})["release_id"]
    ledger = RemoteLedger(Connection(Loopback(remote.service, "both")), home=remote.workspace.home)
    for population, release in ((PEOPLE, ours), ("others", theirs)):
        for found in (
            ledger.find("weekly", population=population),
            remote.ledger.find("weekly", population=population),
        ):
            assert found is not None
            assert found.id == release
    assert ledger.find("daily", population=PEOPLE) is None


@pytest.mark.parametrize("chosen", ["weekly", f"{PEOPLE}/weekly", None])
def test_a_run_key_names_one_release_locally_and_remotely(
    remote: RemoteHome, requested: dict[str, Any], chosen: str | None
) -> None:
    here = {name: fact for name, fact in requested.items() if name not in ("population", "snapshot", "run_key")}
    run_key = chosen or requested["run_key"]
    first = remote.call("reserve", **requested | {"run_key": run_key})
    grant = remote.ledger.reserve(PEOPLE, **here, run_key=run_key, snapshot_id=requested["snapshot"])
    assert (first["is_new"], grant.is_new, grant.release_id) == (True, False, first["release_id"])
    assert (remote.ledger.find(run_key) is None) == (chosen is not None)
    begun_here = remote.ledger.reserve(PEOPLE, **here, run_key="daily", snapshot_id=requested["snapshot"])
    assert remote.call("reserve", **requested | {"run_key": "daily"})["release_id"] == begun_here.release_id
    assert remote.call("find", run_key="daily")["id"] == begun_here.release_id


def test_a_reader_sees_budgets_and_spends_nothing(remote: RemoteHome, requested: dict[str, Any]) -> None:
    release = begun(remote, requested)
    shown = {"identify", "budget", "statement", "history", "release"}
    routes = {
        route.path.rpartition("/")[2] for route in remote.service.application({}).routes if isinstance(route, APIRoute)
    }
    for route in routes - shown:
        assert isinstance(refusal(remote, route, by="reader"), NotAllowed)
    assert [row["id"] for row in remote.call("statement", by="reader", population=PEOPLE)["releases"]] == [release]
    for route in shown - {"identify"}:
        facts = {"release": release} if route == "release" else {"population": PEOPLE}
        assert "content" not in json.dumps(remote.call(route, by="reader", **facts))


def test_a_noise_key_is_returned_only_while_its_release_is_in_progress(
    remote: RemoteHome, requested: dict[str, Any]
) -> None:
    release = remote.call("reserve", **requested)["release_id"]
    assert isinstance(refusal(remote, "key", release=release), NotAllowed)
    remote.call("begin", release=release)
    assert len(bytes.fromhex(remote.call("key", release=release))) == 32
    remote.ledger.close(release)
    assert isinstance(refusal(remote, "key", release=release), NotAllowed)
    assert isinstance(refusal(remote, "begin", release=release), NotAllowed)


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a fact more": lambda requested: requested | {"void": True},
    "many facts more": lambda requested: requested | {str(at): at for at in range(10_000)},
    "another fact": lambda requested: {("void" if name == "event" else name): requested[name] for name in requested},
    "a fact less": lambda requested: {name: requested[name] for name in requested if name != "event"},
    "an empty run key": lambda requested: requested | {"run_key": ""},
    "a run key of control characters": lambda requested: requested | {"run_key": "a\0b"},
    "a long run key": lambda requested: requested | {"run_key": "a" * 501},
    "a fingerprint that is none": lambda requested: requested | {"fingerprint": "x"},
    "a huge number inside": lambda requested: requested | {"request": requested["request"] | {"components": 2**70}},
    "a number beyond floats": lambda requested: (
        requested | {"request": requested["request"] | {"components": float("inf")}}
    ),
    "no object": lambda requested: [requested],
    "a deep one": lambda requested: requested | {"request": json.loads("[" * 60 + "]" * 60)},
}


def test_a_malformed_request_is_refused_completely(remote: RemoteHome, requested: dict[str, Any]) -> None:
    before = remote.reported()
    bodies = [written(form(requested)) for form in FORMS.values()]
    for body in (*bodies, b"", b"{", b"[" * 100_000, b"\xff", b'{"run_key": 1' + b"0" * 5000 + b"}"):
        status, answer = Loopback(remote.service, "runner").send("/v1/reserve", body, media=JSON, most=0)
        assert json.loads(answer)["kind"] in ("Invalid", "InvalidInput"), body
        assert status == REFUSED
    status, answer = Loopback(remote.service, "runner").send("/v1/reserve", b"{}", media="text/plain", most=0)
    assert json.loads(answer)["kind"] == "Invalid"
    status, answer = Loopback(remote.service, "runner").send(
        "/v1/reserve", bytes(LONGEST_MESSAGE + 1), media=JSON, most=0
    )
    assert "has more than" in json.loads(answer)["line"]
    assert remote.reported() == before


def test_errors_of_the_ledgers_storage_are_reported_without_details(
    remote: RemoteHome, requested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise Unavailable("the database at ledger.example, user dpca, cannot be used.")

    monkeypatch.setattr(remote.ledger, "statement", lost)
    with pytest.raises(Unavailable, match="its log states which") as shown:
        remote.call("statement", population=PEOPLE)
    assert "example" not in str(shown.value)


def test_a_lost_answer_is_requested_again_without_a_second_effect(
    remote: RemoteHome, requested: dict[str, Any]
) -> None:
    remote.caller.cut = {"reserve", "begin", "keep"}
    connection = Connection(remote.caller)
    release = connection.call("reserve", Answer[Grant], **requested).release_id
    assert connection.call("begin", Answer[Begun], release=release).relation == "add_remove"
    assert connection.call("keep", Answer[str], release=release, step=0, digest="0" * 64) == "0" * 64
    assert connection.call("keep", Answer[str], release=release, step=0, digest="1" * 64) == "0" * 64
    assert remote.caller.lost == ["reserve", "begin", "keep"]
    names = remote.journal()
    assert [names.count(name) for name in ("release_reserved", "release_begun", "step_kept")] == [1, 1, 1]


CLIENT = {"name": "runner", "certificate": "runner.pem", "role": "runner", "populations": ["people"]}


def configured(folder: Path, **others: Any) -> Path:
    for name in ("ledger", "runner", "reader"):
        if not (folder / f"{name}.pem").exists():
            make_identity(name, folder)
    content = {"listen": "127.0.0.1:0", "key": "ledger.key", "clients": [CLIENT], **others}
    (folder / "ledger.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))  # no YAML aliases
    return folder / "ledger.yaml"


def test_a_configuration_names_its_clients(tmp_path: Path) -> None:
    found = read_config(configured(tmp_path))
    (client,) = found.clients
    assert (client.role, client.populations) == ("runner", frozenset({"people"}))
    assert client.fingerprint == fingerprint_of((tmp_path / "runner.pem").read_text())
    assert (found.key, found.certificate) == (tmp_path / "ledger.key", tmp_path / "ledger.pem")


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"clients": []}, "clients of .* at least 1 item"),
        ({"clients": ["runner"]}, "clients.0 of .* valid dictionary"),
        ({"clients": [CLIENT | {"role": "owner"}]}, "clients.0.role of .* 'runner' or 'reader'"),
        ({"clients": [CLIENT | {"populations": "people"}]}, "clients.0.populations of .* valid frozenset"),
        ({"clients": [CLIENT | {"name": ""}]}, "clients.0.name of .* at least 1 character"),
        ({"clients": [CLIENT | {"spends": True}]}, "clients.0.spends of .* not permitted"),
        ({"clients": [CLIENT, CLIENT | {"certificate": "reader.pem"}]}, "have the same name"),
        ({"clients": [CLIENT, CLIENT | {"name": "another"}]}, "have the same key"),
        ({"clients": [CLIENT | {"certificate": "none.pem"}]}, "one certificate in PEM"),
        ({"more": 1}, "more of .* not permitted"),
        ({"listen": 8790}, "listen of .* valid string"),
        ({"clients": [CLIENT | {"name": " "}]}, "clients.0.name of .* match"),
    ],
)
def test_an_invalid_configuration_is_refused(tmp_path: Path, others: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidInput, match=line):
        read_config(configured(tmp_path, **others))
