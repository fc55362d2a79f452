"""``dpca registry show`` and ``history``: the spectrum of a release beside its noise, and the moves of aliases."""

import getpass
import json
from pathlib import Path

import pytest

from flows.reports.charts import theme_of
from storage.registry.reader import Registry
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
    asked = ("registry", "show", "sub@1", "--plot", tmp_path / "other.svg")
    assert "component 99 is none of the release's" in dpca(*asked, "--component", "99").complaint(1)
    assert "'sepia' is unknown" in dpca(*asked, "--theme", "sepia").complaint(1)
    assert "name a file with --plot" in dpca("registry", "show", "sub@1", "--component", "1").complaint(2)
    assert not (tmp_path / "other.svg").exists()


@pytest.mark.usefixtures("released")
def test_show_gives_the_spectrum_as_numbers(dpca: Command) -> None:
    artifact = Registry.open().load("sub@1")
    facts = json.loads(dpca("registry", "show", "sub@1", "--spectrum", "--json").out)
    assert facts["spectrum"]["values"] == artifact.spectrum.tolist()
    assert facts["spectrum"]["noise_edge"] == artifact.outcome["noise_edge"]
    assert facts["spectrum"]["above_noise"] == artifact.outcome["above_noise"]
    assert "spectrum" not in json.loads(dpca("registry", "show", "sub@1", "--json").out)


@pytest.mark.usefixtures("ready")
def test_a_release_of_directions_alone_has_no_spectrum_to_show(dpca: Command) -> None:
    assert dpca(*FIT, "--mechanism", "exponential", "--delta", "0", "--direct", "--yes").status == 0
    assert "directions without eigenvalues" in dpca("registry", "show", "sub@1", "--spectrum").complaint(1)


@pytest.mark.usefixtures("released")
def test_history_tells_who_moved_an_alias_and_from_where(dpca: Command) -> None:
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
