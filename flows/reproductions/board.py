"""A board: all our mechanisms, two libraries and three published covariance methods on real data, side by side.

Everyone protects one replaced row of norm at most 1, the number of rows public, at the same epsilon; those that are not
pure at the same delta. What each captures of the variance is compared with the best k directions. A method runs in a
child process with one thread, for a limited processor time: "does not finish" is a result. The data are public, so
nothing is charged.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prefect import flow
from prefect.client.schemas.objects import State
from scipy import sparse

from dpca_tasks.metrics import held_variance
from flows.orchestration import form_fields
from flows.reproductions.board_contestants import CONTESTANTS, Contestant, true_epsilon
from flows.reproductions.board_data import DataSet, data_sets
from flows.reproductions.board_page import page_of
from flows.reproductions.checks import Check, Report, at_least, report, reported_by_flow
from flows.reproductions.children import Answer, Child, Failed, OutOfTime
from flows.reproductions.peers import serving
from flows.reproductions.second_moments import second_moment

type Matrix = NDArray[np.float64]
type Cell = dict[str, Any]

EPSILONS, DELTA, RUNS, LIMIT = (0.1, 1.0, 4.0), 1e-6, 3, 60.0
WITHIN = 0.05
"""How far the best of our mechanisms may be below the best of the others."""
PEERS = Path(".venv-peers/bin/python")
"""Where ``make bench`` builds the libraries' environment, from the checkout."""


def make_board(
    *,
    data: str = "data",
    peers: str | None = None,
    epsilons: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    runs: int = RUNS,
    limit: float = LIMIT,
    page: str | None = None,
    cells: str | None = None,
) -> Report:
    """Run everyone on every data set at every epsilon.

    Parameters
    ----------
    data : str
        The folder that ``make data`` filled.
    peers : str, optional
        The Python that has diffprivlib and OpenDP; by default that of ``make bench``, where it was built.
    epsilons, names : sequence, optional
        What is compared at, and on which data sets; all by default.
    runs : int
        The runs of a cell, whose mean is stated; fewer where the limit allows no more.
    limit : float, seconds of processor time
        Of all runs of a cell. A method that did not finish is not tried at a larger epsilon on the same data.
    page : str, optional
        The Markdown file to write.
    cells : str, optional
        A file of finished cells, a JSON object a line: those that are there are not run again, others are added.

    Returns
    -------
    Report
        With ``cells`` and ``data``; each check compares the best of our mechanisms with the best of the others.
    """
    python = peers or (str(PEERS) if PEERS.exists() else None)
    compared, made, left_out = list[dict[str, Any]](), list[Cell](), list[str]()
    if python is None:
        left_out.append(f"diffprivlib and OpenDP: {PEERS} is not there; name another Python by --peers")

    def checks() -> Iterator[Check]:
        for each in data_sets(Path(data), names=names):
            if each.missing is not None:
                left_out.append(f"{each.name}: {each.missing}")
                continue
            rows = each.load()
            compared.append(_facts(each, rows))
            asked = _Asked(python=python, epsilons=tuple(sorted(epsilons or EPSILONS)), runs=runs, limit=limit)
            found = list(_cells(rows, compared[-1], asked, None if cells is None else Path(cells)))
            made.extend(found)
            yield from _comparisons(each.name, found)

    found = report(checks(), left_out=left_out, data=compared, cells=made)
    if page is not None:
        text = page_of(compared, made, left_out, delta=DELTA, runs=runs, limit=limit)
        Path(page).write_text(text, encoding="utf-8")
    return found


@flow(name="reproduce-board", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_board(
    data: form_fields.DataFolder = "data",
    peers: form_fields.Interpreter = None,
    epsilons: form_fields.Epsilons = None,
    names: form_fields.DataSets = None,
    runs: form_fields.Runs = RUNS,
    limit: form_fields.TimeLimit = LIMIT,
    page: form_fields.Page = None,
    cells: form_fields.Cells = None,
) -> Report | State[Any]:
    """Compare all mechanisms with libraries and published methods on real data."""
    settings = {"epsilons": epsilons, "names": names, "runs": runs, "limit": limit, "page": page, "cells": cells}
    return reported_by_flow(make_board, data=data, peers=peers, **settings)


def _facts(each: DataSet, rows: sparse.csr_array) -> dict[str, Any]:
    """Return what the page says of a data set; ``random`` is what a random subspace captures."""
    n, d = rows.shape
    values = np.linalg.eigvalsh(second_moment(rows))[::-1]
    best, k = float(values[: each.n_components].sum()), each.n_components
    facts = {"name": each.name, "words": each.words, "n_records": n, "n_features": d, "n_components": k}
    largest = 2.0 ** math.ceil(math.log2(values[0] / n))
    return facts | {"share": best / n, "random": k / d * n / best, "largest": largest}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How cells are run: the libraries' Python, the epsilons in order, runs, and the seconds of a cell."""

    python: str | None
    epsilons: tuple[float, ...]
    runs: int
    limit: float


def _cells(rows: sparse.csr_array, facts: dict[str, Any], asked: _Asked, kept: Path | None) -> Iterator[Cell]:
    """Iterate over the cells of a data set."""
    known = {} if kept is None or not kept.exists() else dict(map(_known, kept.read_text().splitlines()))
    moment, best = second_moment(rows), facts["share"] * facts["n_records"]

    def captured(directions: Matrix) -> float:
        return float(held_variance(moment, np.linalg.qr(directions.T)[0].T) / best)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sparse.save_npz(folder / "rows.npz", rows, compressed=False)
        ours = stack.enter_context(Child([sys.executable, "-W", "ignore", "-m", "flows.reproductions.board_child"]))
        library = asked.python and stack.enter_context(Child([asked.python, "-W", "ignore", serving.__file__]))
        for contestant in CONTESTANTS:
            child = library if contestant.group == "library" else ours
            if not child:
                continue
            finishes = True
            for epsilon in asked.epsilons:
                cell = _claim(contestant, facts, epsilon)
                request = dict(contestant.request) | {"rows": str(folder / "rows.npz"), "k": facts["n_components"]}
                request |= {"epsilon": epsilon, "delta": cell["delta"]}
                if request.get("paper") == "coinpress":
                    request["settings"] = {"largest": facts["largest"]}
                key = (facts["name"], contestant.name, epsilon, asked.runs, asked.limit)
                if not finishes:
                    outcome: Cell = {"ending": "not tried"}
                elif key in known:
                    outcome = known[key]
                else:
                    outcome = _outcome(partial(child.ask, **request), captured, asked)
                    if kept is not None:
                        with kept.open("a", encoding="utf-8") as file:
                            file.write(json.dumps([key, outcome]) + "\n")
                finishes = finishes and outcome["ending"] != "does not finish"
                yield cell | outcome


def _known(line: str) -> tuple[tuple[Any, ...], Cell]:
    key, outcome = json.loads(line)
    return tuple(key), outcome


def _claim(contestant: Contestant, facts: dict[str, Any], epsilon: float) -> Cell:
    """Return what is known of a cell before it is run."""
    sizes = {name: facts[name] for name in ("n_components", "n_features", "n_records")}
    bound, true = true_epsilon(contestant, epsilon=epsilon, **sizes)
    cell = {"data": facts["name"], "method": contestant.name, "group": contestant.group, "epsilon": epsilon}
    return cell | {"delta": 0.0 if contestant.pure else DELTA, "true_epsilon": true, "bound": bound}


def _outcome(ask: Callable[..., Answer], captured: Callable[[Matrix], float], asked: _Asked) -> Cell:
    """Run as often as is asked for and the limit allows."""
    found, seconds = list[float](), list[float]()
    while len(found) < asked.runs and sum(seconds) * (1 + 1 / max(len(seconds), 1)) <= asked.limit:
        try:
            answer = ask(seconds=asked.limit - sum(seconds))
        except OutOfTime:
            if found:
                break
            return {"ending": "does not finish"}
        except Failed as error:
            return {"ending": "refused", "reason": str(error)}
        found.append(captured(answer.directions))
        seconds.append(answer.seconds)
    spread = float(np.std(found, ddof=1)) if len(found) > 1 else None
    mean = float(np.mean(found))
    return {"ending": "finished", "captured": mean, "spread": spread, "seconds": min(seconds), "runs": len(found)}


def _comparisons(name: str, cells: Sequence[Cell]) -> Iterator[Check]:
    """Compare the best of our mechanisms with the best of the others at each epsilon."""
    for epsilon in dict.fromkeys(cell["epsilon"] for cell in cells):
        here = [cell for cell in cells if cell["epsilon"] == epsilon and cell["ending"] == "finished"]
        ours, others = ([c["captured"] for c in here if (c["group"] == "dpca") is mine] for mine in (True, False))
        if others:
            best = f"{name} epsilon={epsilon:g}: captured by the best of ours, beside the best of the others"
            yield at_least(best, max(others), got=max(ours, default=0.0), tolerance=WITHIN)
