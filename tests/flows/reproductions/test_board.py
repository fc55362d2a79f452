"""The board: what a cell says of a run, what is not tried, what each method really gives, and the page."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.mechanisms.subspace import MECHANISMS
from flows.reproductions import board, board_child
from flows.reproductions.board_contestants import CONTESTANTS, true_epsilon
from flows.reproductions.board_data import DataSet, data_sets
from flows.reproductions.children import Answer, Failed, OutOfTime

ROWS = sparse.csr_array(np.repeat(np.eye(6), [3000, 2000, *[50] * 4], axis=0))
ASKED = {
    "analyze_gauss",
    "analyze_gauss, refined",
    "OpenDP",
    "wishart",
    "CoinPress 2020",
    "Dong et al. 2022, SeparateCov",
}


class Beside:
    """Stands for a child: the same functions in this process; OpenDP never comes to an end."""

    def __init__(self, _command: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, *, seconds: float, method: str, **request: Any) -> Answer:
        if method == "opendp":
            raise OutOfTime(f"{seconds} s")
        if request.get("paper") == "separate":
            raise Failed("ValueError: no | such thing")
        made = {"mechanism": board_child.mechanism, "paper": board_child.paper}[method](request)
        return Answer(directions=made, seconds=2.0)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    one = DataSet(name="made", words="along the axes", n_components=2, load=lambda: ROWS)
    two = DataSet(name="other", words="nowhere", n_components=2, load=lambda: ROWS, missing="other is not there")
    monkeypatch.setattr(board, "Child", Beside)
    monkeypatch.setattr(board, "data_sets", lambda _data, names: [one, two])
    monkeypatch.setattr(board, "CONTESTANTS", [each for each in CONTESTANTS if each.name in ASKED])


@pytest.mark.usefixtures("beside")
def test_a_board_states_every_cell_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "board.md"
    made = board.make_board(peers="python", epsilons=(4.0, 1.0), runs=3, limit=5.0, page=str(page))
    cells = {(cell["method"], cell["epsilon"]): cell for cell in made["cells"]}
    assert {method for method, _ in cells} == ASKED
    assert cells["analyze_gauss", 1.0]["runs"] == 2  # a third would pass the limit
    assert cells["analyze_gauss", 4.0]["captured"] > 0.99
    assert cells["analyze_gauss, refined", 4.0]["captured"] > 0.99
    assert [cells["OpenDP", epsilon]["ending"] for epsilon in (1.0, 4.0)] == ["does not finish", "not tried"]
    assert cells["Dong et al. 2022, SeparateCov", 1.0]["ending"] == "refused"
    assert cells["wishart", 1.0]["delta"] == 0.0
    assert made["left_out"] == ["other: other is not there"]
    assert [check["holds"] for check in made["checks"]] == [True, True]
    text = page.read_text(encoding="utf-8")
    for part in (
        "## made",
        "| does not finish | ≥ ",
        "| not tried | ≥ ",
        "no \\| such thing",
        "- other: other is not there",
    ):
        assert part in text


@pytest.mark.usefixtures("beside")
def test_cells_that_are_kept_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = str(tmp_path / "cells.jsonl")
    first = board.make_board(peers="python", epsilons=(1.0,), runs=1, cells=kept)
    monkeypatch.setattr(Beside, "ask", None)
    again = board.make_board(peers="python", epsilons=(1.0,), runs=1, cells=kept)
    assert again == first


@pytest.mark.usefixtures("beside")
def test_without_their_interpreter_the_libraries_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = board.make_board(epsilons=(1.0,), runs=1)
    assert "OpenDP" not in {cell["method"] for cell in made["cells"]}
    assert "--peers" in made["left_out"][0]


def test_what_each_really_gives_is_bounded_from_the_side_that_is_known() -> None:
    for each in CONTESTANTS:
        bound, true = true_epsilon(each, epsilon=1.0, n_components=10, n_features=123, n_records=32_561)
        assert bound == ("at least" if each.group == "library" else "at most")
        assert true > 1.5 if each.group == "library" else true <= 1.0


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    found = {each.name: each for each in data_sets(tmp_path)}
    assert [name for name, each in found.items() if each.missing] == ["mnist", "reuters"]
    assert [each.name for each in data_sets(tmp_path, names=["digits"])] == ["digits"]
    for name in ("digits", "breast cancer"):
        rows = found[name].load()
        np.testing.assert_allclose(rows.multiply(rows).sum(axis=1), 1.0)


def test_every_mechanism_is_on_the_board():
    assert {each.request["mechanism"] for each in CONTESTANTS if each.group == "dpca"} == set(MECHANISMS)
