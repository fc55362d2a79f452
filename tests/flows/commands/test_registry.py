"""Command ``dpca registry``: spectra of releases, alias moves, keys, roots and trust, as typed by users."""

import getpass
import json
from pathlib import Path

import pytest

from dpca.registry.reader import Registry
from flows.reports.release_charts import theme_of
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command


@pytest.mark.usefixtures("released")
def test_show_draws_the_spectrum_with_the_edge_that_the_release_states(dpca: Command, tmp_path: Path) -> None:
    artifact, plot = Registry.open().load("sub@1"), tmp_path / "spectrum.png"
    ending = dpca("registry", "show", "sub@1", "--spectrum", "--plot", plot)
    assert ending.status == 0
    assert f"{artifact.outcome['noise_edge']:,.1f} less than once in 100 times" in ending.out
    assert ending.out.count("●") == artifact.n_components + 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "●" not in dpca("registry", "show", "sub@1").out


@pytest.mark.usefixtures("released")
def test_show_draws_the_loadings_of_a_component_in_a_theme(dpca: Command, tmp_path: Path) -> None:
    plot = tmp_path / "loadings.svg"
    assert dpca("registry", "show", "sub@1", "--component", "1", "--plot", plot, "--theme", "dark").status == 0
    picture = plot.read_text()
    assert "<title>Component 1: " in picture
    assert f"fill: {theme_of('dark').ground}" in picture
    requested = ("registry", "show", "sub@1", "--plot", tmp_path / "other.svg")
    assert "component 99 does not exist in this release" in dpca(*requested, "--component", "99").complaint(1)
    assert "'sepia' is unknown" in dpca(*requested, "--theme", "sepia").complaint(1)
    assert "name the file of the plot with --plot" in dpca("registry", "show", "sub@1", "--component", "1").complaint(2)
    assert not (tmp_path / "other.svg").exists()


@pytest.mark.usefixtures("released")
def test_show_gives_the_spectrum_as_numbers(dpca: Command) -> None:
    artifact = Registry.open().load("sub@1")
    facts = json.loads(dpca("registry", "show", "sub@1", "--spectrum", "--json").out)
    assert facts["spectrum"]["values"] == artifact.spectrum.tolist()
    assert facts["spectrum"]["noise_edge"] == artifact.outcome["noise_edge"]
    assert facts["spectrum"]["above_noise"] == artifact.outcome["above_noise"]
    assert "spectrum" not in json.loads(dpca("registry", "show", "sub@1", "--json").out)


@pytest.mark.usefixtures("released")
def test_a_list_of_all_versions_mentions_no_earlier_ones(dpca: Command) -> None:
    ending = dpca("registry", "list", "--limit", "1")
    assert "sub@1" in ending.out
    assert "earlier" not in ending.err


@pytest.mark.usefixtures("ready")
def test_a_release_of_directions_alone_has_no_spectrum_to_show(dpca: Command) -> None:
    assert dpca(*FIT, "--mechanism", "exponential", "--delta", "0", "--direct", "--yes").status == 0
    assert "directions without eigenvalues" in dpca("registry", "show", "sub@1", "--spectrum").complaint(1)


@pytest.mark.usefixtures("released")
def test_history_states_who_moved_an_alias_and_its_previous_version(dpca: Command) -> None:
    assert "no alias of sub was moved yet" in dpca("registry", "history", "sub").out
    dpca("registry", "promote", "sub@1", "champion")
    Workspace.open().promote("sub", version=1, alias="live", why={"drift": 0.25, "verdict": "above noise"})
    first, second = json.loads(dpca("registry", "history", "sub", "--json").out)
    assert {**first, "time": ""} == {
        **{"time": "", "alias": "champion", "from": None, "to": 1},
        **{"actor": getpass.getuser(), "why": {}},
    }
    assert (second["alias"], second["why"]) == ("live", {"drift": 0.25, "verdict": "above noise"})
    assert "drift 0.25, verdict above noise" in dpca("registry", "history", "sub").out
    assert "nobody" in dpca("registry", "history", "nobody").complaint(1)


@pytest.fixture
def signed(released: Path, dpca: Command, tmp_path: Path) -> Path:
    """Create a root key for a home with a release; return the path of the key."""
    assert (released / "registry" / "signed" / "sub.json").exists()
    key = tmp_path / "root.key"
    assert dpca("registry", "root", "init", "--out", key).status == 0
    return key


def verified(dpca: Command) -> bool:
    return bool(json.loads(dpca("registry", "verify", "sub@1", "--require-signature", "--json").out)["signed"])


def test_a_consumer_pins_a_root_and_follows_a_rotation_and_a_revocation(
    dpca: Command, signed: Path, tmp_path: Path
) -> None:
    assert "no root key is pinned" in dpca("registry", "verify", "sub@1", "--require-signature").complaint(1)
    assert dpca("registry", "trust", tmp_path / "root.key.pub").status == 0
    assert verified(dpca)
    first, after = tmp_path / "first.pub", tmp_path / "next.pub"
    assert dpca("registry", "key", "show", "--out", first).status == 0
    assert dpca("registry", "key", "rotate", "--out", after).status == 0
    root = ("registry", "root", "update", "--key", signed)
    assert dpca(*root, "--delegate", after, "--retire", first).status == 0
    assert verified(dpca)
    assert dpca("registry", "resign").status == 0
    assert verified(dpca)
    assert dpca(*root, "--revoke", first).status == 0
    assert verified(dpca)
    assert dpca(*root, "--revoke", after).status == 0
    assert "was revoked in version 4" in dpca("registry", "verify", "sub@1").complaint(1)
    shown = json.loads(dpca("registry", "root", "show", "--json").out)
    assert (shown["version"], [*shown["publishers"].values()]) == (4, ["revoked: *"] * 2)


def test_mistakes_of_an_operator_with_keys_are_reported_in_one_line(
    dpca: Command, signed: Path, tmp_path: Path
) -> None:
    assert "already has a root" in dpca("registry", "root", "init", "--out", tmp_path / "other.key").complaint(1)
    assert not (tmp_path / "other.key").exists()
    assert "already exists" in dpca("registry", "key", "new").complaint(1)
    assert "64 hex digits" in dpca("registry", "trust", "key").complaint(1)
    assert "has no root signed by the pinned key" in dpca("registry", "trust", "0" * 64).complaint(1)
    other = tmp_path / "stranger.key"
    assert dpca("registry", "root", "new-key", "--out", other).status == 0
    assert "fewer were given" in dpca("registry", "root", "update", "--key", other).complaint(1)
    threshold = dpca("registry", "root", "init", "--out", tmp_path / "third.key", "--threshold", "2")
    assert "must be from 1 to 1" in threshold.complaint(1)
    missing = dpca("registry", "root", "update", "--key", tmp_path / "missing.key")
    assert "cannot be read" in missing.complaint(1)
    assert signed.exists()


def test_doctor_reports_signatures_that_consumers_refuse(dpca: Command, signed: Path, tmp_path: Path) -> None:
    def signing() -> str:
        found = json.loads(dpca("doctor", "--json").out)
        return next(str(row["verdict"]) for row in found if row["check"] == "signing")

    assert signing() == "ok"
    publisher = json.loads(dpca("registry", "key", "show", "--json").out)["publisher"]
    assert dpca("registry", "root", "update", "--key", signed, "--revoke", publisher).status == 0
    assert signing() == "fix"
