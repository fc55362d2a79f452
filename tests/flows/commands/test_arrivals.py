"""Files that were set aside are listed with their reasons, and taken again after a repair or with other options."""

import json
from pathlib import Path

import numpy as np
import pytest

from storage.workspace import Workspace
from tests.flows.arriving import DATASET, drop, open_budget, refresh, states
from tests.flows.conftest import Command

LOOP = ("--publish", "map", "--components", 2, "--epsilon", 4, "--delta", 1e-6, "--clip-norm", 2, "--settled", 0)


def refreshes(dpca: Command, inbox: Path, *words: str | float) -> tuple[int, dict[str, object], str]:
    ending = dpca("subspace", "refresh", inbox, DATASET, *LOOP, *words, "--direct", "--yes", "--json")
    return ending.status, json.loads(ending.out), ending.err


def arrivals(dpca: Command) -> dict[str, dict[str, str | None]]:
    return {Path(row["file"]).name: row for row in json.loads(dpca("dataset", "arrivals", DATASET, "--json").out)}


def test_an_attended_refresh_with_a_file_set_aside_fails_and_names_the_command_that_lists_it(
    inbox: Path, dpca: Command
) -> None:
    open_budget()
    drop(inbox, "good.npy", seed=1)
    (inbox / "bad.npy").write_bytes(b"SECRET")
    status, found, err = refreshes(dpca, inbox)
    assert (status, found["set_aside"], found["promoted"]) == (1, 1, 1)
    assert f"dpca dataset arrivals {DATASET}" in err
    assert "SECRET" not in err
    listed = arrivals(dpca)
    assert listed["good.npy"]["state"] == "released"
    assert listed["bad.npy"]["state"] == "set_aside"
    assert "no readable .npy array" in str(listed["bad.npy"]["reason"])
    status, found, err = refreshes(dpca, inbox)
    assert (status, found["outcome"], err) == (0, "nothing arrived", "")


def test_a_file_is_taken_again_with_other_options_after_a_retry_and_charged_once(inbox: Path, dpca: Command) -> None:
    open_budget()
    np.save(inbox / "wide.npy", np.random.default_rng(2).normal(size=(2_000, 9)))
    assert refreshes(dpca, inbox, "--features", 8)[0] == 1
    assert arrivals(dpca)["wide.npy"]["state"] == "set_aside"
    assert refreshes(dpca, inbox)[1]["outcome"] == "nothing arrived", "it is not taken again by itself"
    retried = json.loads(dpca("dataset", "retry", DATASET, "wide.npy", "--json").out)
    assert [(Path(row["file"]).name, row["state"]) for row in retried] == [("wide.npy", "waiting")]
    status, found, _ = refreshes(dpca, inbox, "--features", 9)
    assert (status, found["set_aside"], states()) == (0, 0, ["committed"])
    assert {row["state"] for row in arrivals(dpca).values()} == {"released"}
    assert "no such file" in dpca("dataset", "retry", DATASET).complaint(1), "what was released stays released"


def test_a_retry_names_files_by_path_name_or_token_and_takes_all_by_default(inbox: Path, dpca: Command) -> None:
    open_budget()
    drop(inbox, "good.npy", seed=1)
    for name in ("a.npy", "b.npy", "c.npy"):
        (inbox / name).write_bytes(b"x")
    refreshes(dpca, inbox)
    listed = arrivals(dpca)
    for word in (inbox / "a.npy", str(listed["b.npy"]["token"])):
        assert dpca("dataset", "retry", DATASET, word).status == 0
    assert "no such file" in dpca("dataset", "retry", DATASET, "good.npy").complaint(1)
    assert "no such file" in dpca("dataset", "retry", DATASET, "a.npy").complaint(1), "it waits already"
    assert refreshes(dpca, inbox)[1]["set_aside"] == 0, "none of several fits, so none is set aside"


def test_a_file_that_the_budget_refused_is_taken_again_after_a_retry(inbox: Path, dpca: Command) -> None:
    open_budget(5.0)
    drop(inbox, "monday.npy", seed=1)
    drop(inbox, "tuesday.npy", seed=2)
    ending = dpca("subspace", "refresh", inbox, DATASET, *LOOP, "--direct", "--yes")
    assert ending.status == 3
    assert sorted(str(row["state"]) for row in arrivals(dpca).values()) == ["refused", "released"]
    assert dpca("dataset", "retry", DATASET).status == 0
    assert refreshes(dpca, inbox, "--epsilon", 0.5)[0] == 0
    assert [row["state"] for row in arrivals(dpca).values()] == ["released"] * 2


@pytest.mark.parametrize("command", ["arrivals", "retry"])
def test_a_dataset_without_arrivals_has_none(home: Path, dpca: Command, command: str) -> None:
    ending = dpca("dataset", command, "others")
    assert ending.status == (0 if command == "arrivals" else 1)
    assert "nothing arrived" in ending.out or "no such file" in ending.err


def test_a_retried_arrival_is_another_one_for_notices(inbox: Path, dpca: Command) -> None:
    open_budget()
    (inbox / "bad.npy").write_bytes(b"x")
    refresh(inbox)
    first = arrivals(dpca)["bad.npy"]["token"]
    assert dpca("dataset", "retry", DATASET).status == 0
    assert refresh(inbox)["set_aside"] == 1
    assert arrivals(dpca)["bad.npy"]["token"] != first
    notices = [path for path in (Workspace.read_only().home / "notices").rglob("*") if path.is_file()]
    assert len(notices) >= 2
