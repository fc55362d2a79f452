"""Base class of private estimators.

It follows the conventions of scikit-learn, but has no seed. A fit makes a release on the budget of the estimator. This
is either a budget in memory or the budget of a population in a ledger.
"""

import hashlib
import json
import os
import shutil
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow.parquet as pq
from scipy import sparse
from scipy.io import mmwrite
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from dpca.artifacts.base import canonical_json
from dpca.artifacts.fitted_transformer import FittedTransformer
from dpca.backends.atomic_files import create_file, make_folder
from dpca.errors import Conflict, Finished, Invalid, Refused
from dpca.home import STAGING
from dpca.privacy_unit import privacy_of
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from flows.estimators.memory import LIBRARIES, SESSION, Fit, InMemoryBudget, LearnedStepWarning, Made
from flows.estimators.tables import Columns, Encoded, Entries, Table, TableRows
from flows.families import columns as declared
from flows.families.base import PlannedRelease, family_of
from flows.releases.running import charge_release, finish_release
from flows.releases.stages import digest_of, plan_on, publish_in
from flows.reports.terminal import rounded_down
from flows.requests import Request
from storage.datasets.catalog import Entry
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.journal import GIVEN_UP
from storage.ledger.releases import Release
from storage.workspace import PopulationBudget

_DIGITS = 17
"""Significant digits that distinguish every float64."""
_CHARGED: dict[str, Counter[str]] = defaultdict(Counter)
"""For each ledger, how often this process charged equal parameters without a slot (the name of one release)."""


def make_release(budget: InMemoryBudget | PopulationBudget | None, fit: Fit) -> Made:
    """Return the existing release of a fit's slot (the name of one release), or charge a budget and make it.

    Parameters
    ----------
    budget : InMemoryBudget, PopulationBudget or None
        None means `SESSION`.
    fit : Fit
        Its dataset and published name are replaced by the names of the budget.

    Raises
    ------
    Invalid
        When ``budget`` is not a budget, or has another relation.
    Conflict
        When the slot was charged with other terms.
    BudgetExhausted
        When the budget does not admit the release. Nothing is charged.
    """
    if budget is None or isinstance(budget, InMemoryBudget):
        if budget is None:
            fit.warn_of_no_ledger()
        held = SESSION if budget is None else budget
        if held.terms is not None:
            _check_relation(fit.relation, held.relation)
        return held.release(fit)
    if not isinstance(budget, PopulationBudget):
        raise Invalid(
            f"budget={type(budget).__name__} is not a budget; pass an InMemoryBudget, or "
            "Workspace.open().budget(POPULATION)."
        )
    relation = budget.workspace.ledger.budget(budget.population).relation
    _check_relation(fit.relation, relation)
    published = budget.published_as(fit.request.family)
    return _release_on_ledger(budget, fit.of(budget.dataset, published=published, relation=relation))


def _check_relation(requested: str | None, charged: str) -> None:
    if requested not in (None, charged):
        raise Invalid(
            f"relation={requested!r} differs from the budget's relation {charged!r}; leave it out, or open "
            "another budget."
        )


def _release_on_ledger(budget: PopulationBudget, fit: Fit) -> Made:
    """Return the published release of a fit; charge it if necessary, and compute it from its stored snapshot."""
    workspace, ledger = budget.workspace, budget.workspace.ledger
    release = _of_slot(budget, fit) or ledger.release(_charge(budget, fit))
    if release.state in GIVEN_UP:
        raise Refused(
            f"the release of slot {fit.slot!r} was {release.state} by an operator; pass another slot, or no slot."
        )
    digest = None
    if release.state != "committed":
        if not workspace.catalog.has(release.snapshot_id):
            verb = "abandon" if release.state == "reserved" else "close"
            raise Refused(
                f"slot {fit.slot!r} cannot be finished, because its stored rows were removed; end it "
                f"with `dpca budget {verb} {release.id}`, and pass another slot."
            )
        with suppress(Finished):
            digest = finish_release(workspace, release)
    version = publish_in(workspace, release.id, digest or digest_of(ledger, release.id), fit.request)
    return Made(artifact=workspace.registry.load(version), published=version)


def _of_slot(budget: PopulationBudget, fit: Fit) -> Release | None:
    """Return the release of a fit's slot, if there is one; no row is read.

    Raises
    ------
    Conflict
        When the slot was charged with other terms.
    """
    found = None if fit.slot is None else budget.workspace.ledger.find(_run_key(budget, fit.slot))
    if found is not None and found.fingerprint != fit.digest:
        problem = found.request.get("plan", {}).get("problem", {})
        raise fit.other_terms({**found.request, "number of columns": problem.get("n_features")})
    return found


def _run_key(budget: PopulationBudget, slot: str) -> str:
    """Return the run key of a slot, which depends only on the population, the dataset's name and the slot."""
    named = hashlib.sha256(canonical_json(["estimator", budget.dataset])).hexdigest()
    return f"{budget.population}/{named}/{slot}"


def _charge(budget: PopulationBudget, fit: Fit) -> str:
    """Store the rows of a fit and charge a release of them; return the id of the release.

    If several processes do this for one slot at the same time, only one of them is charged. The snapshots of the others
    are removed again.
    """
    workspace, ledger = budget.workspace, budget.workspace.ledger
    rows = fit.read_rows()
    planned = _check_plan(budget, fit)  # refuses an impossible request before rows are written
    family_of(planned.request).refuse_noise(planned)
    charged = _CHARGED[ledger.id]
    fit.warn_if_repeated(charged, payer=budget)
    entry, grant = _store(budget, rows, records_at_most=fit.records_at_most), None
    try:
        planned = plan_on(ledger, entry, fit.request)
        if fit.slot is not None:
            planned = replace(planned, run_key=_run_key(budget, fit.slot), fingerprint=fit.digest)
        grant = charge_release(ledger, planned)
    except Conflict:
        _of_slot(budget, fit)  # another process charged the slot with other terms in the meantime
        raise
    finally:
        if grant is None or not grant.is_new:
            with suppress(Refused):  # if this fit was charged and then interrupted, its rows are still needed
                workspace.catalog.remove(entry.name, snapshot=entry.snapshot)
    fit.note_charge(charged)
    return grant.release_id


def _check_plan(budget: PopulationBudget, fit: Fit) -> PlannedRelease[Any]:
    """Plan a fit's request before its rows are stored, so that an impossible request is refused early."""
    entry = Entry(
        snapshot="",
        name=budget.dataset,
        population=budget.population,
        n_features=fit.columns.n_features,
        records_at_most=fit.records_at_most,
        path="",
        content_digest="",
        created_at="",
    )
    return plan_on(budget.workspace.ledger, entry, fit.request)


def _store(budget: PopulationBudget, rows: TableRows, *, records_at_most: int | None) -> Entry:
    """Store rows as a snapshot of the budget's dataset.

    The rows pass through temporary files. If this process is killed, a later cleanup of the home folder removes them.
    """
    workspace = budget.workspace
    folder = workspace.home / STAGING / uuid4().hex
    make_folder(folder)
    encoded = rows.encoded
    try:
        report = ingest(
            [_write(rows, piece, folder) for piece in range(rows.n_blocks)]
            if encoded is None
            else [_write_raw(encoded, folder)],
            name=budget.dataset,
            home=workspace.home,
            engine=workspace.ledger.engine,
            place=workspace.store,
            options=IngestOptions(
                population=budget.population,
                records_at_most=records_at_most,
                dtype="float64",
                keep_zeros=rows.has_zeros,
                # the rows of a fit have at most one value for each entry
                duplicates="refuse" if rows.has_zeros else None,
                feature_names=None if encoded else _write_names(rows.feature_names(), folder),
                table_schema=None if encoded is None else _write_schema(encoded, folder),
            ),
            # keeps the folder recent, because cleanup removes folders that do not change
            progress=lambda *_: os.utime(folder),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return workspace.catalog.entry(report.snapshot)


def _write(rows: TableRows, piece: int, folder: Path) -> Path:
    """Write the rows of a piece exactly; return the file, in Matrix Market format if stored zeros must be kept."""
    made = rows.pieces[piece]()
    kind = ".mtx" if rows.has_zeros else ".npz" if sparse.issparse(made) else ".npy"
    file = folder / f"{piece:08}{kind}"
    create_file(file)  # creates the file so that other users can never read it
    if rows.has_zeros:
        mmwrite(file, made, precision=_DIGITS, symmetry="general")
    elif sparse.issparse(made):
        sparse.save_npz(file, made, compressed=False)
    else:
        np.save(file, made)
    return file


def _write_raw(encoded: Encoded, folder: Path) -> Path:
    """Write a raw table as Parquet; return the file."""
    file = folder / "rows.parquet"
    create_file(file)
    pq.write_table(encoded.raw, file)
    return file


def _write_schema(encoded: Encoded, folder: Path) -> str:
    """Write a schema as JSON; return the file."""
    file = folder / "schema.json"
    create_file(file)
    file.write_text(json.dumps(encoded.facts), encoding="utf-8")
    return str(file)


def _write_names(names: Sequence[str] | None, folder: Path) -> str | None:
    """Write the names of columns, one per line; return the file."""
    if names is None:
        return None
    if not all(name and not {"\n", "\r"} & {*name} for name in names):
        raise Invalid("a column has an empty name, or a name of several lines; a name is one line; rename that column.")
    file = folder / "names.txt"
    create_file(file)
    file.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return str(file)


def _left(budget: InMemoryBudget | PopulationBudget) -> str:
    """Return a text with the epsilon that a budget has left for one more release."""
    if isinstance(budget, InMemoryBudget):
        return "no bound" if budget.terms is None else f"epsilon {rounded_down(budget.remaining)}"
    return f"epsilon {rounded_down(budget.statement().remaining)} of budget {budget.population!r}"


def warn_of_learned_steps(estimator: BaseEstimator) -> None:
    """Warn if an earlier step of the Pipeline that fits this estimator learned from the same rows."""
    frame = sys._getframe(1)
    while frame is not None:
        pipeline = frame.f_locals.get("self")
        if isinstance(pipeline, Pipeline) and frame.f_code.co_filename.endswith("pipeline.py"):
            steps = [step for _, step in pipeline.steps]
            at = next((at for at, step in enumerate(steps) if step is estimator), frame.f_locals.get("step_idx"))
            learned = [type(step).__name__ for step in steps[:at] if _learned(step)] if at else []
            if learned:
                warnings.warn(
                    f"{', '.join(learned)} before {type(estimator).__name__} in the Pipeline is fitted to "
                    "the rows without noise, so the whole result is not private; use public numbers instead, such as "
                    "FunctionTransformer(lambda rows: rows / PUBLIC_SCALE).",
                    LearnedStepWarning,
                    skip_file_prefixes=LIBRARIES,
                )
            return
        frame = frame.f_back  # type: ignore[assignment]


def _learned(step: Any) -> bool:
    """Return whether a fitted step holds numbers that it computed from rows."""
    if isinstance(step, (PrivateEstimator, FittedTransformer)) or not isinstance(step, BaseEstimator):
        return False
    inner = [*(one[1] for one in getattr(step, "transformers_", ())), *(one[1] for one in vars(step).get("steps", ()))]
    inner += [one[1] for one in vars(step).get("transformer_list", ())]
    if inner:
        return any(_learned(one) for one in inner)
    facts = {name for name in vars(step) if name.endswith("_") and not name.startswith("_")}
    return bool(facts - {"n_features_in_", "feature_names_in_"}) and get_tags(step).requires_fit


UNNAMED = "rows"
"""Placeholder for the dataset and published name of a request until its budget replaces them."""


class PrivateEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of transformers whose fit is one release, charged to a budget."""

    epsilon: float | None
    delta: float | None
    relation: Relation | None
    records_at_most: int | None
    slot: str | None
    budget: InMemoryBudget | PopulationBudget | None
    n_components_: int
    schema: Any = None
    _entries = Entries()

    def __sklearn_tags__(self) -> Any:
        """Return the scikit-learn tags; rows may be sparse, and two fits on equal rows differ by their noise."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._entries.missing
        return tags

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram; for a fitted estimator, add a table with the release and its guarantee."""
        diagram = str(super()._repr_html_inner())
        if not hasattr(self, "artifact_"):
            return diagram
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._declared())
        return f'{diagram}<table aria-label="what was released">{rows}</table>'

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the representations for a notebook."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        return {**bundle, "text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    def _declared(self) -> list[tuple[str, str]]:
        """Return labelled texts: the verdict on the release's quality, its guarantee and the remaining budget."""
        manifest = self.artifact_.manifest
        verdict = (manifest.get("outcome") or {}).get("verdict")
        left = "this release has no budget that bounds it" if self.budget is None else _left(self.budget)
        message = [("verdict", verdict or self.artifact_.headline()), ("guarantee", str(privacy_of(manifest)))]
        return [*message, ("left of the budget", left)]

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _guarantee(self) -> tuple[float, float]:
        """Return epsilon and delta of a request.

        Raises
        ------
        InvalidInput
            When epsilon or delta is None.
        """
        if self.epsilon is None or self.delta is None:
            raise InvalidInput(
                f"epsilon={self.epsilon!r} and delta={self.delta!r} guarantee nothing; state both, such "
                "as epsilon=1.0 and a delta well below 1/rows."
            )
        return float(self.epsilon), float(self.delta)

    def _release(self, request: Request, X: Any) -> Any:
        """Make the release of a request on a table, or find the release of its slot; return the artifact."""
        encoded = self._encoded(X)
        columns = Columns.learned(self, X if encoded is None else encoded.header())

        def read_rows(*, copied: bool = False) -> TableRows:
            frame = X if encoded is None else encoded.frame()
            table = Table.checked(self, frame, reset=True, entries=self._entries)
            rows = TableRows(table.copied() if copied else table, feature_names=columns.names, encoded=encoded)
            if self.records_at_most is not None and rows.n_records > self.records_at_most:
                raise Invalid(
                    f"X has more rows than records_at_most={self.records_at_most}; declare a public bound "
                    "that is not exceeded."
                )
            return rows

        fit = Fit(
            request=request,
            columns=columns,
            read_rows=read_rows,
            relation=self.relation,
            records_at_most=self.records_at_most,
            slot=self.slot,
        )
        names = columns.names
        family_of(request).check_columns(
            request,
            lambda: declared.Columns(
                table="X",
                n_features=columns.n_features,
                names=names,
                encoder=None if encoded is None else encoded.facts,
            ),
        )
        warn_of_learned_steps(self)
        made = make_release(self.budget, fit)
        self.artifact_, self.published_ = made.artifact, made.published
        return made.artifact

    def _table(self, X: Any) -> Table:
        """Return a table to transform, encoded by the schema of the fit if there is one."""
        encoded = self._encoded(X)
        frame = X if encoded is None else encoded.frame()
        return Table.checked(self, frame, reset=False, entries=self._entries)

    def _encoded(self, X: Any) -> Encoded | None:
        return None if self.schema is None else Encoded.of(self.schema, X)
