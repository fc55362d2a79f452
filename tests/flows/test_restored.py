"""A restored ledger is locked, says why in one line, and goes on, charged, when an operator accepts it."""

import json
import shutil
from pathlib import Path

import pytest

from storage.registry.reader import Registry
from tests.flows.conftest import FIT, Command


@pytest.mark.parametrize("parts", [("dpca.sqlite",), ("dpca.sqlite", "keys", "registry")])
def test_what_a_restored_home_forgot_is_charged_again(ready: Path, dpca: Command, parts: tuple[str, ...]) -> None:
    shutil.copytree(ready, ready.with_name("copy"))
    made = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
    for name in parts:
        for path in ready.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in ready.with_name("copy").glob(f"{name}*"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, ready / path.name)
    for words in (("budget", "show", "people"), (*FIT, "--direct", "--yes")):
        assert "has un-spent; restore the newest copy" in dpca(*words).complaint(1)
    assert "fix   database" in dpca("doctor").out
    accepted = dpca("budget", "accept-restored", "--reason", "the disk died", "--yes", "--json")
    (row,) = json.loads(accepted.out)
    assert (row["release"], row["versions"], row["epsilon"]) == (made["release"], "sub@1", 1.0)
    assert "1 release is charged again" in accepted.err
    repeated = dpca("budget", "accept-restored", "--reason", "no answer came", "--yes", "--json")
    assert json.loads(repeated.out) == []
    assert "it lacks no release, and what was charged again when it was accepted before, at 20" in repeated.err
    shown = json.loads(dpca("budget", "show", "people", "--json").out)
    assert shown["spent"] == made["spent"]
    assert [item["release"] for item in shown["releases"]] == [made["release"]]
    assert Registry.open().resolve("sub@1").digest == made["digest"]
    if "registry" not in parts:
        again = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
        assert (again["artifact"], again["digest"], again["reused"]) == ("sub@1", made["digest"], True)
    other = json.loads(dpca(*FIT, "--run-key", "another", "--direct", "--yes", "--json").out)
    assert other["artifact"] == "sub@2"


def test_a_lost_ledger_is_locked_and_goes_on_once_somebody_pays(released: Path, dpca: Command) -> None:
    before = Registry.open().resolve("sub@1").digest
    shutil.rmtree(released / "keys")
    for path in released.glob("dpca.sqlite*"):
        path.unlink()
    terms = ("budget", "open", "people", "--epsilon", "2", "--delta", "1e-6")
    accept = ("budget", "accept-restored", "--reason", "lost", "--yes")
    assert "shows sub, which this ledger did not publish" in dpca(*terms).complaint(1)
    assert "say --charge POPULATION" in dpca(*accept).complaint(1)
    assert dpca(*terms, "--even-locked").status == 0
    assert "shows sub" in dpca("budget", "show", "people").complaint(1)
    (row,) = json.loads(dpca(*accept, "--charge", "people", "--json").out)
    assert (row["population"], row["versions"]) == ("people", "sub@1")
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] > 0.99
    assert Registry.open().resolve("sub@1").digest == before
