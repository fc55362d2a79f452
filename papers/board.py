"""A comparison of all dpca mechanisms, two libraries and three published covariance methods on real data (the board).

At each epsilon, all methods protect one replaced row of norm at most 1, with a public number of rows. Methods whose
delta is not 0 have the same delta. The result is the captured variance, relative to the best k directions.

Each method runs in a child process with one thread and a limit on processor time, so a method may not finish. The data
are public, so nothing is charged. ``python -m papers.board`` starts the child process for the dpca mechanisms and the
published methods.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from scipy import sparse

from dpca_tasks.accounting.closed_brackets import inverted_sampler_loss
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.metrics import held_variance
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.refinement.refined_release import refine_release
from papers.lib import children
from papers.lib.children import Answer, Child, Failed, OutOfTime, rows_of, serve
from papers.lib.covariances import (
    adaptive_covariance,
    amin_covariance,
    amin_epsilon,
    coinpress_covariance,
    separate_covariance,
)
from papers.lib.experiments import Check, DataFolder, Matrix, Report, at_least, report, run_mechanism
from papers.lib.public_data import DataSet, data_sets, second_moment

type Cell = dict[str, Any]
type Bound = Literal["at most", "at least"]

EPSILONS, DELTA, RUNS, LIMIT = (0.1, 1.0, 4.0), 1e-6, 3, 60.0
WITHIN = 0.05
"""The margin by which the best dpca mechanism may fall below the best other method."""
PEERS = Path(".venv-peers/bin/python")
"""The path, relative to the checkout, of the libraries' Python, in the environment that ``make bench`` builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A method on the board.

    ``request`` has additional fields of the request to the child process. ``pure`` states that the method claims
    delta 0.
    """

    name: str
    group: Literal["dpca", "library", "paper"]
    pure: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)


def _ours(mechanism: str, *, name: str | None = None, pure: bool = False, refine: str = "none", **settings: Any) -> Any:
    request = {"method": "mechanism", "mechanism": mechanism, "refine": refine, "settings": settings}
    return Contestant(name=name or mechanism, group="dpca", pure=pure, request=request)


def _paper(paper: str, *, name: str, pure: bool = False) -> Contestant:
    return Contestant(name=name, group="paper", pure=pure, request={"method": "paper", "paper": paper, "settings": {}})


CONTESTANTS = (
    _ours("analyze_gauss", rounds=1),
    _ours("analyze_gauss", name="analyze_gauss, refined", refine="auto", rounds=1),
    _ours("analyze_gauss", name="analyze_gauss, in rounds", refine="auto", rounds=3),
    _ours("mod_sulq"),
    _ours("noisy_power"),
    _ours("dp_spca"),
    _ours("dp_vrpca"),
    _ours("dps_pca"),
    _ours("smooth_sensitivity"),
    _ours("propose_test_release"),
    _ours("local_gaussian"),
    _ours("wishart", pure=True),
    _ours("exponential", pure=True),
    _ours("laplace", pure=True),
    _ours("smooth_sensitivity", name="smooth_sensitivity, spherical t", pure=True, noise="spherical_t"),
    Contestant(name="diffprivlib", group="library", pure=True, request={"method": "diffprivlib"}),
    Contestant(name="OpenDP", group="library", pure=True, request={"method": "opendp"}),
    _paper("amin", name="Amin et al. 2019", pure=True),
    _paper("coinpress", name="CoinPress 2020"),
    _paper("separate", name="Dong et al. 2022, SeparateCov"),
    _paper("adaptive", name="Dong et al. 2022, AdaptiveCov"),
)


def reproduce(
    *,
    data: DataFolder = Path("data"),
    peers: Annotated[
        Path | None,
        typer.Option(help="Python with diffprivlib and OpenDP; default: .venv-peers of make bench, if built."),
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Epsilon; default: 0.1, 1 and 4.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Data set; default: all available ones.")] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Number of runs per mean, fewer if the time limit is reached.")
    ] = RUNS,
    limit: Annotated[
        float, typer.Option(min=0.1, help="Limit in seconds of processor time for one method at one epsilon.")
    ] = LIMIT,
    page: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
    cells: Annotated[
        Path | None, typer.Option(help="File of results; stored results are not computed again, new ones are added.")
    ] = None,
) -> Report:
    """Compare all mechanisms with two libraries and three published covariance methods on real data.

    The data are public, so no budget is spent. The checks compare the best dpca mechanism with the best other method.
    --page and --json list every cell: captured variance, seconds, the actual epsilon of each method, and the methods
    that did not finish. A method that did not finish is not tried at a larger epsilon on the same data.
    """
    python = peers or (PEERS if PEERS.exists() else None)
    compared, made, left_out = list[dict[str, Any]](), list[Cell](), list[str]()
    if python is None:
        left_out.append(f"diffprivlib and OpenDP: {PEERS} does not exist; name another Python with --peers")
    requested = _Request(python=python, epsilons=tuple(sorted(epsilon or EPSILONS)), runs=runs, limit=limit)

    def checks() -> Iterator[Check]:
        for each in data_sets(data):
            if dataset and each.name not in dataset:
                continue
            if each.missing is not None:
                left_out.append(f"{each.name}: {each.missing}")
                continue
            rows = each.load()
            compared.append(_facts(each, rows))
            found = list(_cells(rows, compared[-1], requested, cells))
            made.extend(found)
            yield from _comparisons(each.name, found)

    found = report(checks(), data=compared, cells=made)
    found["left_out"] = left_out
    if page is not None:
        text = page_of(compared, made, left_out, delta=DELTA, runs=runs, limit=limit)
        page.write_text(text, encoding="utf-8")
    return found


def _facts(each: DataSet, rows: sparse.csr_array) -> dict[str, Any]:
    """Return the facts of a data set that the page states, such as its size.

    ``random`` is the share of the variance that a random subspace captures, relative to the best.
    """
    n, d = rows.shape
    values = np.linalg.eigvalsh(second_moment(rows))[::-1]
    best, k = float(values[: each.n_components].sum()), each.n_components
    facts = {"name": each.name, "words": each.words, "n_records": n, "n_features": d, "n_components": k}
    largest = 2.0 ** math.ceil(math.log2(values[0] / n))
    return facts | {"share": best / n, "random": k / d * n / best, "largest": largest}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The settings of a board.

    They are the Python interpreter of the libraries, the epsilons in increasing order, and the limits for each cell on
    the number of runs and on processor seconds. A cell is one method at one epsilon on one data set.
    """

    python: Path | None
    epsilons: tuple[float, ...]
    runs: int
    limit: float


def _cells(rows: sparse.csr_array, facts: dict[str, Any], requested: _Request, kept: Path | None) -> Iterator[Cell]:
    """Run every method at every epsilon on a data set, and yield the results; reuse results in the file ``kept``."""
    known = {} if kept is None or not kept.exists() else dict(map(_known, kept.read_text().splitlines()))
    moment, best = second_moment(rows), facts["share"] * facts["n_records"]

    def captured(directions: Matrix) -> float:
        return float(held_variance(moment, np.linalg.qr(directions.T)[0].T) / best)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sparse.save_npz(folder / "rows.npz", rows, compressed=False)
        ours = stack.enter_context(Child([sys.executable, "-W", "ignore", "-m", "papers.board"]))
        library = requested.python and stack.enter_context(
            Child([str(requested.python), "-W", "ignore", children.__file__])
        )
        for contestant in CONTESTANTS:
            child = library if contestant.group == "library" else ours
            if not child:
                continue
            finishes = True
            for epsilon in requested.epsilons:
                cell = _claim(contestant, facts, epsilon)
                request = dict(contestant.request) | {"rows": str(folder / "rows.npz"), "k": facts["n_components"]}
                request |= {"epsilon": epsilon, "delta": cell["delta"]}
                if request.get("paper") == "coinpress":
                    request["settings"] = {"largest": facts["largest"]}
                key = (facts["name"], contestant.name, epsilon, requested.runs, requested.limit)
                if not finishes:
                    outcome: Cell = {"ending": "not tried"}
                elif key in known:
                    outcome = known[key]
                else:
                    outcome = _outcome(partial(child.call, **request), captured, requested)
                    if kept is not None:
                        with kept.open("a", encoding="utf-8") as file:
                            file.write(json.dumps([key, outcome]) + "\n")
                finishes = finishes and outcome["ending"] != "does not finish"
                yield cell | outcome


def _known(line: str) -> tuple[tuple[Any, ...], Cell]:
    key, outcome = json.loads(line)
    return tuple(key), outcome


def _claim(contestant: Contestant, facts: dict[str, Any], epsilon: float) -> Cell:
    """Return the fields of a result that are known before a method runs, such as its claimed delta."""
    sizes = {name: facts[name] for name in ("n_components", "n_features", "n_records")}
    bound, true = true_epsilon(contestant, epsilon=epsilon, **sizes)
    cell = {"data": facts["name"], "method": contestant.name, "group": contestant.group, "epsilon": epsilon}
    return cell | {"delta": 0.0 if contestant.pure else DELTA, "true_epsilon": true, "bound": bound}


def _outcome(call: Callable[..., Answer], captured: Callable[[Matrix], float], requested: _Request) -> Cell:
    """Run a method up to the requested number of times within the time limit, and return the measured fields."""
    found, seconds = list[float](), list[float]()
    while len(found) < requested.runs and sum(seconds) * (1 + 1 / max(len(seconds), 1)) <= requested.limit:
        try:
            answer = call(seconds=requested.limit - sum(seconds))
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
    """Compare the best dpca mechanism with the best other method at each epsilon."""
    for epsilon in dict.fromkeys(cell["epsilon"] for cell in cells):
        here = [cell for cell in cells if cell["epsilon"] == epsilon and cell["ending"] == "finished"]
        ours, others = ([c["captured"] for c in here if (c["group"] == "dpca") is mine] for mine in (True, False))
        if others:
            best = f"{name} epsilon={epsilon:g}: captured by the best dpca mechanism, against the best other method"
            yield at_least(best, max(others), got=max(ours, default=0.0), tolerance=WITHIN)


def true_epsilon(
    contestant: Contestant, *, epsilon: float, n_components: int, n_features: int, n_records: int
) -> tuple[Bound, float]:
    """Return a bound on the true epsilon of a method for one replaced record, at the delta that it claims."""
    shares = {"diffprivlib": epsilon / (n_components + 1), "OpenDP": 2 * epsilon / (3 * n_components)}
    if contestant.name in shares:
        share = shares[contestant.name]
        return "at least", inverted_sampler_loss(slope=share / 4, n_features=n_features, rows=n_records // 2)
    if contestant.request.get("paper") == "amin":
        return "at most", amin_epsilon(n_components=n_components, epsilon=epsilon)
    return "at most", epsilon


PAPERS: dict[str, Callable[..., Matrix]] = {
    "amin": amin_covariance,
    "coinpress": coinpress_covariance,
    "separate": separate_covariance,
    "adaptive": adaptive_covariance,
}


@lru_cache(maxsize=1)
def _blocks(path: str) -> ArrayBlocks:
    return ArrayBlocks(rows_of(path))


def run_ours(request: dict[str, Any]) -> Matrix:
    """Plan and run a dpca mechanism, refine its release if requested, and return the directions."""
    source = _blocks(request["rows"])
    problem = Problem(
        n_features=source.n_features, clip_norm=1.0, relation="replace_one", records_at_most=source.n_records
    )
    made = MECHANISMS[request["mechanism"]](n_components=request["k"], **request["settings"])
    target = PrivacyTarget(epsilon=request["epsilon"], delta=request["delta"])
    released = run_mechanism(made, problem, target, source)
    if request["refine"] == "none":
        return np.asarray(released.components)
    return np.asarray(refine_release(released, n_components=request["k"], method=request["refine"]).subspace.components)


def run_paper(request: dict[str, Any]) -> Matrix:
    """Run a published covariance method, and return the directions."""
    return PAPERS[request["paper"]](
        rows_of(request["rows"]),
        n_components=request["k"],
        epsilon=request["epsilon"],
        delta=request["delta"],
        **request["settings"],
    )


SHORTEST = 0.01
"""The least number of seconds that a processor clock measures reliably."""
HEAD = """# A board of private PCA on real data

This page compares all mechanisms of dpca, two libraries and three published covariance methods on public data. The
whole page is generated by `python -m papers board --page FILE`.

**All methods protect the same unit**: one replaced row of norm at most 1, with a public number of rows. Methods whose
delta is not 0 have delta {delta:g}.

**The column of an epsilon (ε)** has the captured variance, divided by the most that as many directions can capture. So
1 is optimal. The text above each table states the value of a random subspace. The number is the mean of up to {runs}
runs (± their standard deviation). All runs together may take {limit:g} s of processor time on one thread. A method that
did not finish was not tried at a larger epsilon on the same data.

**The column s** has the processor seconds of the shortest run, without loading code.

**Does not finish** means that one run needs more than {limit:g} s of processor time. *diffprivlib* and *OpenDP* reject
almost every draw, so more time does not help. The other methods decompose or multiply dense d x d matrices several
times, with about `d^3` operations each: 5e8 with 784 columns, 8e9 with 2,000. With more time they finish.

**The column "gives"** has the true epsilon of a method, at the delta of its claim: at most (≤) or at least (≥) this
value. It differs from the requested epsilon for these reasons:

- *dpca* is calibrated for the replaced row, exactly or by a proved bound.

- *diffprivlib* and *OpenDP* draw eigenvectors by rejection sampling, with an error in the acceptance ratio. So they
  accept almost no draw, and the accepted draws cost more than the intended mechanism (`dpca mechanism truth`). The
  stated bound counts only the loss of the first direction, for data with the same number of rows along two axes. For
  OpenDP, it also assumes a known mean. OpenDP itself charges a replaced row twice the requested epsilon.

- *Amin et al. 2019* count twice the true cost of an eigenvector, so the true epsilon is below the requested epsilon.

- *CoinPress 2020* assumes normal rows, and needs a public bound on the largest eigenvalue of their covariance. Here it
  gets the largest eigenvalue of the data, rounded up to a power of two. An owner of private data does not have such a
  bound. All its noise is Gaussian, and is converted to epsilon exactly.

- *Dong et al. 2022* are also accounted for exactly, which needs less noise than the zCDP analysis in their paper.

The last three methods are implemented from their papers in `papers/lib/covariances.py`. They run only on public data,
and are not mechanisms of dpca.
"""


def page_of(
    data: Sequence[Mapping[str, Any]],
    cells: Sequence[Cell],
    left_out: Sequence[str],
    *,
    delta: float,
    runs: int,
    limit: float,
) -> str:
    """Return the page of the board as Markdown."""
    parts = [HEAD.format(delta=delta, runs=runs, limit=limit)]
    if left_out:
        parts.append("Left out on this run:\n\n" + "".join(f"- {each}\n" for each in left_out))
    parts.extend(_section(facts, [cell for cell in cells if cell["data"] == facts["name"]]) for facts in data)
    return "\n".join(parts)


def _section(facts: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """Return the section of the page for one data set: heading, facts and table."""
    epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
    lines = [
        f"## {facts['name']}\n",
        f"{facts['words']}: {facts['n_records']:,} rows, {facts['n_features']:,} columns, {facts['n_components']} "
        f"components. The best components capture {facts['share']:.3f} of all variance. Relative to this, a random "
        f"subspace captures {facts['random']:.3f}. CoinPress gets the public bound {facts['largest']:g} on the largest "
        f"eigenvalue of the covariance.\n",
        "| method | delta |" + "".join(f" ε = {epsilon:g} | gives | s |" for epsilon in epsilons),
        "|---|---|" + "---:|---:|---:|" * len(epsilons),
        *_page_rows(cells, epsilons),
    ]
    refused = {(cell["method"], cell["reason"]) for cell in cells if cell["ending"] == "refused"}
    notes = [f"- {method}: {_plain(reason)}\n" for method, reason in sorted(refused)]
    return "\n".join(lines) + "\n" + ("\nRefused:\n\n" + "".join(notes) if notes else "")


def _page_rows(cells: Sequence[Cell], epsilons: Sequence[float]) -> Iterator[str]:
    for method in dict.fromkeys(cell["method"] for cell in cells):
        mine = {cell["epsilon"]: cell for cell in cells if cell["method"] == method}
        shown = "".join(_shown(mine[epsilon]) for epsilon in epsilons)
        yield f"| {method} | {mine[epsilons[0]]['delta']:g} |{shown}"


def _shown(cell: Cell) -> str:
    sign = "≤" if cell["bound"] == "at most" else "≥"
    gives = f"{sign} {cell['true_epsilon']:.3g}"
    if cell["ending"] != "finished":
        return f" {cell['ending']} | {gives} | |"
    spread = "" if cell["spread"] is None else f" ± {cell['spread']:.3f}"
    seconds = "< .01" if cell["seconds"] < SHORTEST else f"{cell['seconds']:.2g}"
    return f" {cell['captured']:.3f}{spread} | {gives} | {seconds} |"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    serve({"mechanism": run_ours, "paper": run_paper})
