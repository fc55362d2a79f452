"""Files in an inbox of the refresh loop: each is ingested, set aside or left, and its name stays private."""

import dataclasses
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient

from dpca.errors import Conflict
from flows import refresh as subject
from flows.ingest import FILE_FAULT, ingest_opened, ingest_source
from flows.jobs import refresh_subspace, run_refresh
from flows.refresh import refresh_directly
from flows.reports.snapshot_facts import REPORTS
from flows.requests import NOT_IN_LOOPS
from storage.datasets.inbox import Arrival, Inbox
from storage.datasets.ingest_options import IngestOptions
from storage.workspace import Workspace
from tests.flows.arriving import (
    DATASET,
    FEATURES,
    OPTIONS,
    Webhook,
    champion,
    drop,
    open_budget,
    refresh,
    request,
    states,
)
from tests.flows.conftest import kept_by, newest_run
from tests.s3 import Server


def fault_report() -> str:
    """Return the private report on arrived files that could not be read; only its owner may read it."""
    path = Workspace.read_only().home / REPORTS / f"{DATASET}.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text()


def test_a_malformed_file_is_set_aside_and_the_next_one_is_processed(
    inbox: Path, hook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    open_budget()
    bad = inbox / "a.npy"
    bad.write_bytes(b"no array, but 271828182 of somebody")
    os.utime(bad, (1, 1))
    drop(inbox, "b.npy", seed=1)
    assert refresh(inbox)["set_aside"] == 1
    assert champion() == 1
    (line,) = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert line == f"set aside: {FILE_FAULT}"
    (reported,) = fault_report().splitlines()
    assert f"{bad}: " in reported
    assert "271828182" not in reported
    aside = next(event for event in hook.reported if event["event"] == "dpca.arrival.set_aside")
    assert "a.npy" not in json.dumps(hook.reported)
    assert aside["dataset"] == DATASET
    assert refresh(inbox)["set_aside"] == 0
    drop(inbox, "a.npy", seed=3)
    refresh(inbox)
    assert champion() == 2


def test_a_file_with_other_columns_than_the_dataset_is_set_aside(inbox: Path) -> None:
    open_budget()
    drop(inbox, "a.npy", seed=1)
    refresh(inbox)
    np.save(inbox / "b.npy", np.ones((50, FEATURES + 1)))
    drop(inbox, "c.npy", seed=2)
    found = refresh(inbox)
    assert (found["set_aside"], len(found["decisions"])) == (1, 1)
    assert f"there are {FEATURES + 1} features, and dataset '{DATASET}' has {FEATURES}" in fault_report()


def test_prefect_stores_no_file_name_and_the_run_ends_with_its_decision(
    inbox: Path, prefect: SyncPrefectClient
) -> None:
    open_budget()
    drop(inbox, "of-mr-miller.npy", seed=1)
    found = refresh(inbox, direct=False)
    assert [made["decision"] for made in found["decisions"]] == ["promoted"]
    assert champion() == 1
    run = newest_run(prefect, "refresh-subspace")
    assert (run.state_name, run.parameters["inbox"]) == ("Completed", f"@{DATASET}")
    kept = kept_by(prefect)
    assert str(run.id) in kept
    for private in ("of-mr-miller", str(inbox.parent)):
        assert private not in kept


def test_a_schedule_finds_the_inbox_and_files_of_the_last_refresh_by_hand(
    inbox: Path, prefect: SyncPrefectClient, tmp_path: Path
) -> None:
    open_budget()
    scale = tmp_path / "palmyra-scale.txt"
    scale.write_text("1.0\n" * FEATURES)
    options = dataclasses.replace(OPTIONS, scale=str(scale))
    flow: Any = refresh_subspace
    given = {item.name: getattr(request(), item.name) for item in dataclasses.fields(request())}
    given = {name: value for name, value in given.items() if name not in NOT_IN_LOOPS}
    requested = {**given, "records_at_most": OPTIONS.records_at_most, "settled": 0.0}
    assert flow(f"@{DATASET}", **requested, return_state=True).name == "Refused"
    run_refresh(str(inbox), request(), options, settled=0.0)
    drop(inbox, "next.npy", seed=2)
    assert flow(f"@{DATASET}", **requested, return_state=True).name == "Completed"
    assert len(states()) == 1
    assert "palmyra-scale" not in kept_by(prefect)
    (kept,) = (Workspace.read_only().home / "inboxes").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        ({"dataset": "../../elsewhere"}, "must start with a letter or digit"),
        ({"alias": "latest"}, "reserved"),
        ({"alias": "The Best"}, "not allowed"),
        ({"drift_at_most": float("nan")}, "between 0 and 1"),
        ({"settled": float("nan")}, "number of seconds"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_impossible_loop_is_refused_before_a_file_is_read(
    inbox: Path, requested: dict[str, Any], reason: str
) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    loop = {"settled": 0.0} | {name: value for name, value in requested.items() if name != "dataset"}
    others = {name: value for name, value in requested.items() if name == "dataset"}
    with pytest.raises(ValueError, match=reason):
        refresh_directly(str(inbox), request(**others), OPTIONS, **loop)
    assert states() == []
    assert not list(inbox.parent.rglob("*.arrival"))


def test_unsuitable_options_end_the_run_in_one_line_and_all_files_stay(
    inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_budget()
    drop(inbox, "a.npy", seed=1)
    drop(inbox, "b.npy", seed=2)
    for wrong, reason in (
        (IngestOptions(features=5), "do not fit any of the 2 waiting files, so none is set aside"),
        (IngestOptions(format="parquet"), "do not fit any of the 2 waiting files"),
        (IngestOptions(dtype="float99"), "float99"),
    ):
        with pytest.raises(ValueError, match=reason) as refused:
            refresh_directly(str(inbox), request(), wrong, settled=0.0)
        assert "\n" not in str(refused.value)
    Workspace.open().catalog.admit(name=DATASET, population=DATASET)
    assert not list(inbox.parent.rglob("*.end"))
    assert "set aside" not in caplog.text
    assert len(refresh(inbox)["decisions"]) == 2
    with pytest.raises(Conflict, match="population"):
        refresh_directly(str(inbox), request(), IngestOptions(population="others"), settled=0.0)


def test_a_single_malformed_file_is_set_aside_with_one_line_in_the_private_report(inbox: Path) -> None:
    open_budget()
    (inbox / "a\nb.npy").write_bytes(b"no array")
    assert refresh(inbox)["outcome"] == "1 set aside"
    (line,) = fault_report().splitlines()
    assert line.count("a?b.npy") == 1


def test_many_bad_files_cause_the_fixed_cost_of_a_run_once(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the loop on 40 bad files: opening the home, listing files and sending notices happen once per run."""
    open_budget()
    for number in range(40):
        (inbox / f"{number}.npy").write_bytes(b"no array")
    counts, opens, reads = Counter[str](), Workspace.open.__func__, Path.read_bytes  # type: ignore[attr-defined]

    def opened(kind: type[Any], /, **more: Any) -> Workspace:
        counts["opened"] += 1
        found: Workspace = opens(kind, **more)
        return found

    def read(path: Path) -> bytes:
        counts["read"] += path.suffix == ".arrival"
        return reads(path)

    monkeypatch.setattr(Workspace, "open", classmethod(opened))
    monkeypatch.setattr(Path, "read_bytes", read)
    drop(inbox, "good.npy", seed=1)
    report = refresh(inbox)
    assert (report["set_aside"], report["promoted"], report["left"]) == (40, 1, 0)
    assert counts["opened"] <= 12
    assert counts["read"] <= 10 * 41
    assert len(fault_report().splitlines()) == 40


def test_a_file_replaced_during_its_ingest_is_charged_once_with_its_new_content(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    path = drop(inbox, "monday.npy", seed=1)

    def replaced(*requested: Any, **more: Any) -> str:
        made = ingest_opened(*requested, **more)
        os.utime(drop(inbox, path.name, seed=2), (1, 1))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(subject, "ingest_opened", replaced)
        assert refresh(inbox)["outcome"] == "1 set aside"
    assert states() == []
    assert refresh(inbox)["outcome"] == "1 promoted"
    assert states() == ["committed"]


def test_a_link_that_takes_the_place_of_a_file_after_its_check_is_not_read(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    path, secret, away = (
        drop(inbox, "monday.npy", seed=1),
        drop(tmp_path / "secret", "a.npy", seed=2),
        tmp_path / "away",
    )
    expected = ingest_digest("expected", str(path))

    def swapped(file: Any, *requested: Any, **more: Any) -> str:
        path.rename(away)
        path.symlink_to(secret)
        made = ingest_opened(file, *requested, **more)
        away.replace(path)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(subject, "ingest_opened", swapped)
        assert refresh(inbox)["outcome"] == "1 promoted"
    catalog = Workspace.open().catalog
    assert catalog.open(catalog.current(DATASET)).manifest.content_digest == expected


def ingest_digest(name: str, source: str) -> str:
    """Ingest a file as another dataset of the same population; return the digest of its rows."""
    ingest_source(source, name, dataclasses.replace(OPTIONS, population=DATASET))
    catalog = Workspace.open().catalog
    return catalog.open(catalog.current(name)).manifest.content_digest


def test_a_file_is_charged_once_however_its_inbox_is_named(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget()
    drop(inbox, "monday.npy", seed=1)
    (inbox / "sub").mkdir()
    (tmp_path / "link").symlink_to(inbox)
    monkeypatch.chdir(inbox.parent)
    outcomes = [
        refresh(named)["outcome"]
        for named in (inbox, Path(inbox.name), inbox / "sub" / "..", tmp_path / "link", tmp_path / "link" / "*.npy")
    ]
    assert outcomes == ["1 promoted", *4 * ["nothing arrived"]]
    assert states() == ["committed"]


def test_an_unreadable_file_waits_and_the_others_are_processed(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_budget()
    os.utime(drop(inbox, "closed.npy", seed=1), (1, 1))
    drop(inbox, "open.npy", seed=2)
    holding = Inbox.holding

    def guarded(found: Inbox, arrival: Arrival) -> Any:
        if arrival.address.endswith("closed.npy"):
            raise PermissionError
        return holding(found, arrival)

    with monkeypatch.context() as patch:
        patch.setattr(Inbox, "holding", guarded)
        assert refresh(inbox)["outcome"] == "1 promoted, 1 left"
    assert refresh(inbox)["outcome"] == "1 promoted"


def test_each_object_of_an_inbox_is_released_once_and_again_if_replaced(
    tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    prefix = s3_server.url(tmp_path.name)
    open_budget()

    def put(name: str, seed: int) -> None:
        payload = drop(tmp_path / "local", "rows.npy", seed=seed).read_bytes()
        s3_server.call("PUT", f"{prefix.removeprefix('s3://')}/{name}", payload)

    def checked() -> str:
        report = refresh_directly(f"{prefix}/", request(), OPTIONS, settled=3_600.0)
        return str(report["outcome"])

    put("monday.npy", 1)
    assert (checked(), checked()) == ("1 promoted", "nothing arrived")
    put("monday.npy", 2)
    assert (checked(), champion(), states()) == ("1 promoted", 2, ["committed"] * 2)
