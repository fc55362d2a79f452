"""Reproduce the experiments of Shang et al., PCA in the stochastic differential privacy model, on real data.

Its Tables 1 and 2 as computed statements, its Figure 1, and the protocol of its Table 3, with every mechanism in its
published and in its tight calibration and the true epsilon beside each. The data are public, so no budget is charged,
and keys come from seeds, so that every number can be made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.errors import Refused
from flows.orchestration import form_fields
from flows.orchestration.prefect_stages import Runner, in_flow
from flows.orchestration.reproduction_artifacts import show_comparison
from flows.reports.comparison_files import write_comparison
from flows.reproductions import labelled_rows, shang_distances, shang_losses, shang_statements
from flows.reproductions.checks import Check, Report, report
from flows.reproductions.labelled_rows import LabelledRows
from storage.errors import Invalid

type Table = list[dict[str, Any]]

SPLITS, DRAWS, TEXT_FEATURES = 8, 5, 1_048
"""Paired splits; draws of each compared arm in a split of a9a; columns of the made text, a twentieth of real-sim's."""
TITLES = {
    "figure1": "Figure 1: distance and captured variance against epsilon",
    "table1": "Table 1: printed bounds and noise, and the true epsilon",
    "table2": "Table 2: the data",
    "table3": "Table 3: points of accuracy lost to the best directions",
}
CHARGED = "nothing: the data are public, and the keys come from seeds"

_COLUMNS = {
    "figure1": shang_distances.COLUMNS,
    "table1": shang_statements.BOUND_COLUMNS,
    "table2": shang_statements.SHAPE_COLUMNS,
    "table3": shang_losses.COLUMNS,
}


@dataclass(slots=True, kw_only=True)
class _Tables:
    """The tables of a reproduction, filled while its checks are made."""

    rows: dict[str, Table] = field(default_factory=lambda: {name: [] for name in TITLES})


def check_shang(
    *,
    data: str = "data",
    cifar10: str | None = None,
    real_sim: str | None = None,
    datasets: Sequence[str] | None = None,
    splits: int = SPLITS,
    draws: int = DRAWS,
    text_features: int = TEXT_FEATURES,
    out: str | None = None,
) -> Report:
    """Check tables, figure and protocol on every data set that is there.

    Parameters
    ----------
    data : str
        The folder that ``make data`` filled; MNIST is left out where it is not there, and the report says so.
    cifar10, real_sim : str, optional
        Files of the user, in the formats of `flows.reproductions.labelled_rows`.
    datasets : sequence of str, optional
        Names of the data sets to run: a9a, MNIST, CIFAR-10, real-sim, text. All that are there by default.
    splits, draws : int
    text_features : int
        Columns of the made text; 20,958 are real-sim's, and take most of an hour.
    out : str, optional
        A folder for tables (CSV, Markdown) and figures (SVG, PNG); it is made where it does not exist.

    Returns
    -------
    Report
        With ``tables`` by the names of `TITLES`, ``columns``, ``files`` and ``charged``.
    """
    if splits < 2:
        raise Invalid(f"splits={splits} must be at least 2: a standard error needs two; ask for 8.")
    if find_spec("sklearn") is None:
        raise Refused(
            "reproduce shang trains scikit-learn's linear SVM, which is missing; install the extra reproduce."
        )
    loaders, left_out = _loaders(Path(data), cifar10, real_sim, text_features)
    chosen = _chosen(loaders, datasets)
    tables = _Tables()
    found = report(_checks(chosen, tables, splits=splits, draws=draws), left_out=left_out, charged=CHARGED)
    found["tables"], found["columns"] = tables.rows, {name: list(columns) for name, columns in _COLUMNS.items()}
    found["files"] = [] if out is None else [str(path) for path in write_comparison(found, TITLES, Path(out))]
    return found


@flow(name="reproduce-shang", persist_result=False, log_prints=False, validate_parameters=True)
def reproduce_shang(
    data: form_fields.DataFolder = "data",
    cifar10: form_fields.Cifar10 = None,
    real_sim: form_fields.RealSim = None,
    datasets: form_fields.DataSets = None,
    splits: form_fields.Splits = SPLITS,
    draws: form_fields.Draws = DRAWS,
    text_features: form_fields.TextFeatures = TEXT_FEATURES,
    out: form_fields.OutFolder = None,
) -> Report | State[Any]:
    """Reproduce the tables and the figure of Shang et al. on public data. Nothing is charged."""

    def body(run: Runner) -> Report:
        found = run(
            check_shang,
            data=data,
            cifar10=cifar10,
            real_sim=real_sim,
            datasets=datasets,
            splits=splits,
            draws=draws,
            text_features=text_features,
            out=out,
        )
        run(show_comparison, "shang", found, TITLES)
        return found

    return in_flow(body)


def _loaders(
    data: Path, cifar10: str | None, real_sim: str | None, text_features: int
) -> tuple[dict[str, Callable[[], LabelledRows]], list[str]]:
    """Return how to load each data set that is there, and what is not."""
    found: dict[str, Callable[[], LabelledRows]] = {"a9a": labelled_rows.a9a}
    left_out = []
    if all((data / place).is_file() for place in (labelled_rows.IMAGES, labelled_rows.LABELS)):
        found["MNIST"] = partial(labelled_rows.mnist, data)
    else:
        left_out.append(f"MNIST is not in {data}: fetch it with make data, or name its folder with --data")
    for name, place, option, load in (
        ("CIFAR-10", cifar10, "--cifar10", labelled_rows.cifar10),
        ("real-sim", real_sim, "--real-sim", labelled_rows.real_sim),
    ):
        if place is None:
            left_out.append(f"{name}: name your file of it with {option}")
        else:
            found[name] = partial(load, Path(place))
    found["text"] = partial(labelled_rows.made_text, text_features)
    return found, left_out


def _chosen(
    loaders: Mapping[str, Callable[[], LabelledRows]], datasets: Sequence[str] | None
) -> list[Callable[[], LabelledRows]]:
    unknown = sorted(set(datasets or ()) - set(loaders))
    if unknown:
        raise Invalid(f"dataset={unknown[0]} is no data set that is here; they are {', '.join(loaders)}.")
    return [load for name, load in loaders.items() if not datasets or name in datasets]


def _checks(
    loaders: Sequence[Callable[[], LabelledRows]], tables: _Tables, *, splits: int, draws: int
) -> Iterator[Check]:
    for load in loaders:
        data = load()
        yield from _on(data, tables, splits=splits, draws=draws)


def _on(data: LabelledRows, tables: _Tables, *, splits: int, draws: int) -> Iterator[Check]:
    """Make the checks of one data set, and its rows of the tables."""
    rows = tables.rows
    rows["table2"] += shang_statements.shapes([data])
    yield from shang_statements.check_shapes(data)
    if data.name == "a9a":
        moment = (data.rows.T @ data.rows).toarray()
        values = (np.linalg.eigvalsh(moment)[::-1] / data.n_records).tolist()
        rows["table1"] += shang_statements.bounds(data.n_records, data.n_features, data.n_components, values)
        yield from shang_statements.check_bounds(data)
        yield shang_distances.check_first_order(data)
        yield shang_distances.check_without_noise(data)
    curves = shang_distances.trace(data, draws=min(draws, 2))
    rows["figure1"] += curves.rows()
    yield from shang_distances.check_distances(curves)
    losses = shang_losses.compare(data, splits=splits, draws=draws)
    rows["table3"] += losses.rows()
    yield shang_losses.check_majority(losses)
    yield from shang_losses.check_losses(losses)
