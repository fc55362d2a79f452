"""The board as one page of Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

type Cell = Mapping[str, Any]

SHORTEST = 0.01
"""Seconds below which a clock of processor time says little."""

HEAD = """# A board of private PCA on real data

All mechanisms of dpca, two libraries and three published covariance methods, on public data. This page is made by
`dpca reproduce board --page FILE`; nothing in it is written by hand.

**Everyone protects the same thing**: one replaced row of norm at most 1, the number of rows public. Methods that are
not pure have delta {delta:g}. *Captured* is the variance that the directions capture, over the most that as many can: 1
is perfect, and what a random subspace captures stands above each table. It is the mean of up to {runs} runs (± their
standard deviation), of which a cell may take {limit:g} s of processor time on one thread; *s* is the processor time of
the shortest run, without the first one's load of code. A method that did not finish was not tried at a larger epsilon
on the same data.

**Gives** is the epsilon that a method really gives, at the delta of its claim: at most (≤) or at least (≥) so much.

- *dpca* calibrates for the replaced row exactly, or by a proved bound.
- *diffprivlib* and *OpenDP* draw eigenvectors by rejection, with the power of the accept test on the wrong side. So
  almost nothing is accepted, and the law of what is accepted costs more than the mechanism that was meant
  (`dpca mechanism truth`). Stated is the loss of the first direction alone, of as many rows that lie along two axes; of
  OpenDP for a known mean, and its own account of a replaced row is twice the epsilon asked for.
- *Amin et al. 2019* book twice what an eigenvector costs, so they give less than was asked for.
- *CoinPress 2020* takes the rows for normal and needs a public bound of the largest eigenvalue of their covariance;
  here it gets the largest eigenvalue of the data, rounded up to a power of two, which no owner of private data knows
  so well. All its noise is Gaussian, and converted to epsilon exactly.
- *Dong et al. 2022* are accounted for exactly, too, which gives them less noise than their zCDP would.

These three are written from their papers (`flows/reproductions/peers/`), run on public data alone, and are no
mechanisms of the product.
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
    """Return the page."""
    parts = [HEAD.format(delta=delta, runs=runs, limit=limit)]
    if left_out:
        parts.append("Left out on this run:\n\n" + "".join(f"- {each}\n" for each in left_out))
    parts.extend(_section(facts, [cell for cell in cells if cell["data"] == facts["name"]]) for facts in data)
    return "\n".join(parts)


def _section(facts: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """Return the heading and the table of a data set."""
    epsilons = list(dict.fromkeys(cell["epsilon"] for cell in cells))
    lines = [
        f"## {facts['name']}\n",
        f"{facts['words']}: {facts['n_records']:,} rows, {facts['n_features']:,} columns, {facts['n_components']} "
        f"components, which hold {facts['share']:.3f} of the variance; a random subspace captures "
        f"{facts['random']:.3f}. CoinPress is told that no eigenvalue of the covariance is above "
        f"{facts['largest']:g}.\n",
        "| method | delta |" + "".join(f" ε = {epsilon:g} | gives | s |" for epsilon in epsilons),
        "|---|---|" + "---:|---:|---:|" * len(epsilons),
        *_rows(cells, epsilons),
    ]
    refused = {(cell["method"], cell["reason"]) for cell in cells if cell["ending"] == "refused"}
    notes = [f"- {method}: {_plain(reason)}\n" for method, reason in sorted(refused)]
    return "\n".join(lines) + "\n" + ("\nRefused:\n\n" + "".join(notes) if notes else "")


def _rows(cells: Sequence[Cell], epsilons: Sequence[float]) -> Iterator[str]:
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
