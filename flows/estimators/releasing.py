"""A release on whichever budget an estimator has: in memory, or of a population in a ledger."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from scipy import sparse
from scipy.io import mmwrite

from dpca_tasks.accounting.relation import Relation
from flows.estimators.memory import SESSION, InMemoryBudget, Made
from flows.estimators.tables import TableRows
from flows.families.base import PlannedRelease
from flows.families.table import family_of
from flows.releases.planning import plan_on
from flows.releases.publish import digest_of, publish_in
from flows.releases.running import charge_release, finish_release
from flows.requests.base import Request
from storage.backends.atomic_files import make_folder
from storage.backends.private import create_file
from storage.datasets.catalog import Entry
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.errors import Finished, Invalid
from storage.home import STAGING
from storage.workspace import PopulationBudget

_DIGITS = 17
"""Significant digits that tell every float64 from its neighbours."""


def make_release(
    budget: InMemoryBudget | PopulationBudget | None,
    request: Request,
    rows: TableRows,
    *,
    relation: Relation | None,
    records_at_most: int | None,
) -> Made:
    """Return the release of a request on rows, charged to a budget when it is made, and never again.

    Parameters
    ----------
    budget : InMemoryBudget, PopulationBudget or None
        None is `SESSION`.
    request : Request
        Its dataset and name are those of the budget, whatever it says.
    rows : TableRows
    relation : str or None
        None is that of the budget.
    records_at_most : int or None
        Public bound on the number of rows, each of which is a record.

    Raises
    ------
    Invalid
        When the budget is none, or of another relation, or there are more rows than declared.
    BudgetExhausted
        When the budget does not admit the release. Nothing is charged.
    """
    if records_at_most is not None and rows.n_records > records_at_most:
        raise Invalid(f"there are more rows than records_at_most={records_at_most}; declare a public bound that holds.")
    if budget is None or isinstance(budget, InMemoryBudget):
        held = SESSION if budget is None else budget
        if held.terms is not None:
            _check_relation(relation, held.relation)
        return held.release(request, rows, relation=relation or held.relation, records_at_most=records_at_most)
    if not isinstance(budget, PopulationBudget):
        raise Invalid(
            f"budget={type(budget).__name__} is none; pass an InMemoryBudget, or Workspace.open().budget(POPULATION)."
        )
    _check_relation(relation, budget.workspace.ledger.budget(budget.population).relation)
    named = replace(request, dataset=budget.dataset, publish=budget.published_as(request.family))
    return _release_on_ledger(budget, named, rows, records_at_most=records_at_most)


def _check_relation(asked: str | None, charged: str) -> None:
    if asked not in (None, charged):
        raise Invalid(f"relation={asked!r}, and the budget is of {charged!r}; leave it out, or open another budget.")


def _release_on_ledger(
    budget: PopulationBudget, request: Request, rows: TableRows, *, records_at_most: int | None
) -> Made:
    """Find or store the rows as a snapshot, find or make the release, and publish it."""
    workspace, ledger = budget.workspace, budget.workspace.ledger
    planned = _planned(budget, request, rows, records_at_most=records_at_most)
    if planned is None:
        _check_plan(budget, request, rows, records_at_most=records_at_most)  # before rows are written
        _store(budget, rows, records_at_most=records_at_most)
        planned = _planned(budget, request, rows, records_at_most=records_at_most)
        assert planned is not None, "the rows were stored"
    if ledger.find(planned.run_key) is None:
        family_of(planned.request).refuse_noise(planned)
    grant = charge_release(ledger, planned)
    digest = None
    if grant.state != "committed":
        with suppress(Finished):
            digest = finish_release(workspace, ledger.release(grant.release_id))
    version = publish_in(workspace, grant.release_id, digest or digest_of(ledger, grant.release_id), request)
    return Made(artifact=workspace.registry.load(version), published=version)


def _planned(
    budget: PopulationBudget, request: Request, rows: TableRows, *, records_at_most: int | None
) -> PlannedRelease[Any] | None:
    """Plan a request on the snapshot of these rows of which it is a release, else on the oldest; None without any.

    Processes that store the same rows at once agree on the snapshot, and so on the release.
    """
    ledger = budget.workspace.ledger
    plans = [
        plan_on(ledger, entry, request)
        for entry in budget.workspace.catalog.with_rows(rows.content, population=budget.population)
        if entry.records_at_most == records_at_most
    ]
    return next((plan for plan in plans if ledger.find(plan.run_key) is not None), plans[0] if plans else None)


def _check_plan(budget: PopulationBudget, request: Request, rows: TableRows, *, records_at_most: int | None) -> None:
    """Refuse a request that cannot be planned, as if the rows were stored."""
    entry = Entry(
        snapshot="",
        name=budget.dataset,
        population=budget.population,
        n_features=rows.n_features,
        records_at_most=records_at_most,
        path="",
        content_digest="",
        created_at="",
    )
    plan_on(budget.workspace.ledger, entry, request)


def _store(budget: PopulationBudget, rows: TableRows, *, records_at_most: int | None) -> None:
    """Store rows as a snapshot of the budget's dataset, by way of files that the home removes if this is killed."""
    workspace = budget.workspace
    folder = workspace.home / STAGING / uuid4().hex
    make_folder(folder)
    try:
        ingest(
            [_write(rows, piece, folder) for piece in range(rows.n_blocks)],
            name=budget.dataset,
            home=workspace.home,
            engine=workspace.ledger.engine,
            place=workspace.store,
            options=IngestOptions(
                population=budget.population,
                records_at_most=records_at_most,
                dtype="float64",
                keep_zeros=rows.has_zeros,
                feature_names=_write_names(rows.feature_names(), folder),
            ),
            progress=lambda *_: os.utime(folder),  # a folder that stays as it is counts as left behind
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(rows: TableRows, piece: int, folder: Path) -> Path:
    """Write the rows of a piece to the last bit; return the file, of the one format that keeps stored zeros if any."""
    made = rows.pieces[piece]()
    kind = ".mtx" if rows.has_zeros else ".npz" if sparse.issparse(made) else ".npy"
    file = folder / f"{piece:08}{kind}"
    create_file(file)  # closed to others from the first byte on
    if rows.has_zeros:
        mmwrite(file, made, precision=_DIGITS, symmetry="general")
    elif sparse.issparse(made):
        sparse.save_npz(file, made, compressed=False)
    else:
        np.save(file, made)
    return file


def _write_names(names: Sequence[str] | None, folder: Path) -> str | None:
    """Write the names of columns, one a line; return the file."""
    if names is None:
        return None
    if not all(name and not {"\n", "\r"} & {*name} for name in names):
        raise Invalid("a column has an empty name, or one of several lines; each name is one line; rename that column.")
    file = folder / "names.txt"
    create_file(file)
    file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return str(file)
