"""Reproduce what DPALS reaches on the tasks of its paper, on ratings of skewed popularity, and on MovieLens.

Ratings are made or public and keys come from seeds, so nothing is charged and every number can be made again. All
epsilons are exact: the published accounting of DPALS counts one of the two sums that a round releases.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.orchestration import form_fields
from flows.reports.line_charts import LineChart, write_line_charts
from flows.reproductions.checks import Check, Report, report, reported_by_flow
from flows.reproductions.dpals_films import folder_checks, ml_100k_checks, movielens_checks
from flows.reproductions.dpals_low_rank import low_rank_checks
from flows.reproductions.dpals_pairs import pair_checks
from flows.reproductions.dpals_scale import Scale
from flows.reproductions.dpals_skewed import skewed_checks
from flows.reproductions.movielens import FETCHED
from storage.errors import Invalid

RUNS, SHARE = 5, 1.0
CHARGED = "nothing: ratings are made or public, and keys come from seeds"
CHARTS = {
    "figure2": LineChart(
        title="Figure 2: skew before and after sampling", x="share of items", y="share of ratings", log=False
    ),
    "figure3": LineChart(title="Figure 3: error against epsilon, skewed ratings", x="true epsilon", y="RMSE"),
    "figure4": LineChart(title="Figure 4: error against epsilon, rank 5", x="true epsilon", y="RMSE"),
    "figure5": LineChart(title="Figure 5: error against the share of items in use", x="share of items", y="RMSE"),
    "iterations": LineChart(title="Error by iteration, rank 5", x="round", y="RMSE", log=False),
    "ml-100k": LineChart(title="Error against epsilon, ml-100k", x="true epsilon", y="RMSE"),
    "pairs": LineChart(title="Recall@20 against epsilon, pairs", x="true epsilon", y="Recall@20"),
    "ranks": LineChart(title="Error by rank, skewed ratings", x="rank", y="RMSE"),
    "ridges": LineChart(title="Error by ridge, skewed ratings", x="item ridge", y="RMSE"),
    "users": LineChart(title="Error by share of users, skewed ratings", x="share of users", y="RMSE"),
}


def check_dpals(
    *, data: str = "data", runs: int = RUNS, share: float = SHARE, movielens: str | None = None, out: str | None = None
) -> Report:
    """Check DPALS on every task that there is, and make the figures.

    Parameters
    ----------
    data : str
        The folder that ``make data`` filled; ml-100k is left out where it is not there, and the report says so.
    runs : int
        Draws of the low-rank task whose median is compared; of the skewed task at most 3, whose mean is.
    share : float
        Of the stated users: expectations are for 1, less shows only that everything runs.
    movielens : str, optional
        A folder of the user with ratings of MovieLens of any size, on whose 400 most rated items methods are compared.
    out : str, optional
        A folder for tables (CSV) and figures (SVG, PNG); it is made where it does not exist.

    Returns
    -------
    Report
        With ``tables`` by the names of `CHARTS`, ``files`` and ``charged``.
    """
    if not (0.0 < share <= 1.0 and runs >= 1):
        raise Invalid(f"share={share} must be in (0, 1] and runs={runs} at least 1; correct them.")
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in (*CHARTS, "films")}
    left_out = [] if (Path(data) / FETCHED).is_dir() else [f"ml-100k: {data} has no {FETCHED}; run make data"]
    found = report(
        _checks(Scale(share=share, runs=runs), Path(data), movielens, tables),
        left_out=left_out,
        tables=tables,
        charged=CHARGED,
    )
    found["files"] = [] if out is None else [str(path) for path in write_line_charts(tables, CHARTS, Path(out))]
    return found


@flow(name="reproduce-dpals", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_dpals(
    data: form_fields.DataFolder = "data",
    runs: form_fields.Runs = RUNS,
    share: form_fields.Share = SHARE,
    movielens: form_fields.MovieLens = None,
    out: form_fields.OutFolder = None,
) -> Report | State[Any]:
    """Check private alternating least squares on made and public ratings, beside its baselines."""
    return reported_by_flow(check_dpals, data=data, runs=runs, share=share, movielens=movielens, out=out)


def _checks(
    scale: Scale, data: Path, movielens: str | None, tables: dict[str, list[dict[str, Any]]]
) -> Iterator[Check]:
    return chain(
        low_rank_checks(scale, tables),
        skewed_checks(scale, tables),
        pair_checks(scale, tables),
        folder_checks(scale, tables),
        ml_100k_checks(scale, data, tables),
        movielens_checks(movielens, tables),
    )
