"""Facts of the pages of versions, budgets and datasets.

The pages state nothing but these facts. No fact is private: of a dataset, only declared facts are returned. An address
without a page raises `Absent`, and the site shows its message. The message therefore contains no path, and no stored
number except the numbers of existing versions.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dpca.artifacts.base import Artifact
from dpca.artifacts.derived import Correlations, DerivedModel
from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.artifacts.estimate import PrivateEstimate
from dpca.artifacts.files import KINDS, kind_named, read_artifact
from dpca.artifacts.moment import PrivateMoment
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.errors import Invalid
from dpca.privacy_unit import privacy_of
from dpca.registry.pointers import versions_up_to
from dpca_tasks.errors import DpcaError
from flows.families.restated_subspace import noise_edge_of
from flows.reports.budget_facts import budget_facts, event_text, pacing_facts, populations_in, runs_that_fit
from flows.reports.release_page import quality_of
from flows.reports.spectrum import Spectrum, top_loadings
from flows.web.listing import VersionRow, aliases_in, numbers_of, versions_in
from storage.database import tables
from storage.database.engine import reading
from storage.ledger.ledger import Ledger
from storage.ledger.releases import actors_of
from storage.ledger.stream_rows import streams_in, ticks_of
from storage.workspace import Workspace


class Absent(Exception):
    """Raised if there is no such page."""


LEADING = 10
"""Number of features shown for each component, and of items shown for each factor."""
_COMPONENTS = 20
_ALIKE, _FEATURES = 5, 60  # in the table of all components: features taken from each component, and features in total
_SPECTRUM = 64

type Loading = dict[str, Any]


def kind_facts(artifact: Artifact) -> dict[str, Any]:
    """Return the facts that depend on the kind of an artifact.

    Returns
    -------
    dict
        ``spectrum`` holds the eigenvalues, the noise edge, and the number of eigenvalues above it; it is None without
        eigenvalues. ``parts`` are components, topics or factors with their leading ``loadings``, and ``n_parts`` is
        their total number.
    """
    match artifact:
        case PrivateSubspace():
            return {"spectrum": _spectrum(artifact), **_components(artifact)}
        case TensorComponents():
            return {"spectrum": None, **_topics(artifact)}
        case ItemEmbeddings():
            return {"spectrum": None, **_items(artifact)}
        case DerivedModel() | Correlations():
            return {"spectrum": None, **_derived(artifact)}
        case PrivateMoment():
            return {"spectrum": None, **_means(artifact)}
        case PrivateEstimate():
            return {"spectrum": None, "noun": "sum", "parts": [], "n_parts": 0}
    return {"spectrum": None, "noun": "part", "parts": [], "n_parts": 0}


def spectrum_of(artifact: PrivateSubspace) -> Spectrum | None:
    """Return the leading eigenvalues of a subspace with its noise edge; None for directions without eigenvalues.

    The noise edge is None if it cannot be computed from the artifact's manifest, for example because another version of
    dpca wrote the manifest.
    """
    try:
        edge = noise_edge_of(artifact)
    except (DpcaError, LookupError, TypeError, ValueError):
        edge = None
    try:
        return Spectrum.of(artifact, noise_edge=edge)
    except Invalid:
        return None


def feature_names(artifact: Artifact, count: int) -> Sequence[str]:
    """Return the declared names of columns; without names, their numbers from 0."""
    names = artifact.manifest.get("feature_names")
    return [str(column) for column in range(count)] if names is None else names


def _spectrum(artifact: PrivateSubspace) -> dict[str, Any] | None:
    spectrum = spectrum_of(artifact)
    if spectrum is None:
        return None
    above = spectrum.above_noise
    shares = artifact.explained_variance_ratio
    rows = [
        {
            "rank": rank,
            "eigenvalue": value,
            "above_noise": None if above is None else rank <= above,
            "component": rank <= spectrum.n_components,
            "share": None if shares is None or rank > len(shares) else float(shares[rank - 1]),
        }
        for rank, value in enumerate(spectrum.eigenvalues[:_SPECTRUM], start=1)
    ]
    return {**{name: fact for name, fact in spectrum.facts().items() if name != "values"}, "rows": rows}


def _components(artifact: PrivateSubspace) -> dict[str, Any]:
    values = artifact.eigenvalues
    parts = [
        {
            "part": number,
            "weight": None if values is None else float(values[number - 1]),
            "loadings": top_loadings(artifact, component=number, count=LEADING),
        }
        for number in range(1, min(artifact.n_components, _COMPONENTS) + 1)
    ]
    about = {"noun": "component", "weighs": "eigenvalue", "parts": parts, "n_parts": artifact.n_components}
    return {**about, "side_by_side": _side_by_side(artifact, len(parts))}


def _side_by_side(artifact: PrivateSubspace, count: int) -> list[dict[str, Any]]:
    """Return the features with the largest loadings on any component, each with its loadings on all components.

    Features are in decreasing order of their largest absolute loading.
    """
    shown = artifact.components[:count]
    leading = np.argsort(-np.abs(shown), axis=1, kind="stable")[:, :_ALIKE]
    columns = sorted({*leading.ravel().tolist()}, key=lambda column: -float(np.abs(shown[:, column]).max()))
    names = artifact.feature_names
    return [
        {
            "feature": f"column {column + 1}" if names is None else names[column],
            "loadings": shown[:, column].tolist(),
        }
        for column in columns[:_FEATURES]
    ]


def _topics(artifact: TensorComponents) -> dict[str, Any]:
    weights = [] if artifact.weights is None else artifact.weights.tolist()
    words = itertools.islice(artifact.top_words(LEADING), _COMPONENTS) if weights else ()
    parts = [
        {"part": number, "weight": weight, "loadings": [{"feature": word, "loading": size} for word, size in found]}
        for number, (weight, found) in enumerate(zip(weights, words, strict=False), start=1)
    ]
    noun = "topic" if artifact.model == "topics" else "centre"
    return {"noun": noun, "weighs": "weight", "parts": parts, "n_parts": artifact.n_components}


def _derived(artifact: DerivedModel | Correlations) -> dict[str, Any]:
    """Return the coefficients or loadings of each output, or the most significant correlations, with their errors."""
    rows, measure = artifact.rows(), "correlation"
    if isinstance(artifact, Correlations):
        rows = [{**row, "output": "", "feature": f"{row['feature']}, {row['other']}"} for row in rows]
    else:
        measure = "coefficient" if artifact.loadings is None else "loading"
    outputs = [""] if isinstance(artifact, Correlations) else artifact.outputs
    parts = [
        {
            "part": at,
            "weight": None,
            "loadings": [
                {"feature": row["feature"], "loading": row[measure], "error": row.get("error")}
                for row in rows
                if row["output"] == output
            ][:_FEATURES],
        }
        for at, output in enumerate(outputs[:_COMPONENTS], start=1)
    ]
    return {"noun": "output", "weighs": "", "measure": measure, "parts": parts, "n_parts": len(outputs)}


def _means(artifact: PrivateMoment) -> dict[str, Any]:
    """Return the largest means of a released moment with their errors, unless the noise hides them."""
    try:
        mean = artifact.mean()
    except Invalid:
        return {"noun": "mean", "parts": [], "n_parts": 0}
    loadings = [
        {"feature": artifact.feature_names[at], "loading": float(mean.values[at]), "error": float(mean.errors[at])}
        for at in np.argsort(-np.abs(mean.values), kind="stable")[:_FEATURES].tolist()
    ]
    parts = [{"part": 1, "weight": None, "loadings": loadings}]
    return {"noun": "output", "weighs": "", "measure": "mean", "parts": parts, "n_parts": 1}


def _items(artifact: ItemEmbeddings) -> dict[str, Any]:
    names = feature_names(artifact, artifact.n_items)
    offsets = {"part": 0, "weight": None, "loadings": largest(artifact.offsets, names)}
    factors: Sequence[NDArray[np.float64]] = [] if artifact.factors is None else [*artifact.factors.T[:_COMPONENTS]]
    parts = [
        {"part": number, "weight": float(np.linalg.norm(column)), "loadings": largest(column, names)}
        for number, column in enumerate(factors, start=1)
    ]
    return {"noun": "factor", "weighs": "length", "parts": [offsets, *parts], "n_parts": artifact.rank}


def largest(values: NDArray[np.float64], names: Sequence[str]) -> list[Loading]:
    """Return the entries of largest absolute value, with their signs; entries of equal size keep their order."""
    order = np.argsort(-np.abs(values), kind="stable")[:LEADING]
    return [{"feature": names[column], "loading": float(values[column])} for column in order]


def numbers_in(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalar numbers and texts by which a release states its quality, by name."""
    kept = (bool, int, float, str, type(None))
    return {
        name: value for name, value in outcome.items() if isinstance(value, kept) and name not in ("seed", "probes")
    }


_OF_SITE = ("site", "dataset", "population", "release", "epsilon", "delta", "relation")


def lineage_facts(connection: sa.Connection, row: VersionRow, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of a version and the versions related to it.

    Parameters
    ----------
    connection : Connection
    row : VersionRow
    manifest : mapping
        The manifest of the version's artifact.

    Returns
    -------
    dict
        ``release`` and ``code_version`` of the version. ``parent`` is the digest of the artifact from which it was made
        without reading a row, and ``made_from`` the versions with that digest. ``same_release`` are the other versions
        of its release. ``stream`` is its stream with the ``tick``, and ``sites`` are its sites. ``starts_from`` is the
        earlier release whose directions it used. ``evaluates`` is the version that it evaluates, and ``evaluated_by``
        are the estimates of its quality.
    """
    parent, plan = manifest.get("parent"), manifest.get("plan") or {}
    return {
        "release": row.release,
        "code_version": manifest.get("code_version"),
        "parent": parent,
        "made_from": [] if parent is None else _versions(connection, tables.published.c.digest == parent),
        "same_release": [
            other for other in _versions(connection, tables.published.c.origin == row.release) if other != row.reference
        ],
        "stream": _stream(connection, row),
        "sites": _sites(connection, row),
        "starts_from": plan.get("like"),
        "evaluates": plan.get("evaluated"),
        "evaluated_by": _estimates(connection, row),
    }


def _versions(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[str]:
    table = tables.published
    query = sa.select(table.c.name, table.c.version).where(which).order_by(table.c.name, table.c.version)
    return [f"{row.name}@{row.version}" for row in connection.execute(query)]


def _stream(connection: sa.Connection, row: VersionRow) -> dict[str, Any] | None:
    """Return the stream and the tick of a version; None if the version belongs to no stream."""
    tick, stream, charge = tables.tick, tables.stream, tables.stream_charge
    charged = sa.select(sa.func.max(charge.c.ticks)).where(charge.c.stream == stream.c.id).scalar_subquery()
    query = (
        sa.select(stream.c.name, tick.c.tick, tick.c.slot, charged.label("ticks"))
        .join(stream, stream.c.id == tick.c.stream)
        .where(tick.c.release_id == row.release)
    )
    found = connection.execute(query).first()
    return None if found is None else dict(found._mapping)


def _sites(connection: sa.Connection, row: VersionRow) -> list[dict[str, Any]]:
    table = tables.joint_version
    here = (table.c.name == row.name) & (table.c.version == row.version)
    reported = connection.execute(sa.select(table.c.sites).where(here)).scalar()
    sites = [] if reported is None else json.loads(reported)
    return [{name: site[name] for name in _OF_SITE if name in site} for site in sites]


def _estimates(connection: sa.Connection, row: VersionRow) -> list[str]:
    """Return the published estimates of a version's quality."""
    release, version = tables.release, tables.version
    query = (
        sa.select(version.c.name, version.c.version, release.c.request)
        .join(release, release.c.id == version.c.release_id)
        .where(release.c.request.contains(f'"artifact": "{row.reference}"', autoescape=True))
        .order_by(version.c.name, version.c.version)
    )
    found = connection.execute(query).all()
    return [
        f"{each.name}@{each.version}" for each in found if json.loads(each.request).get("artifact") == row.reference
    ]


def find_version(connection: sa.Connection, name: str, version: int) -> VersionRow:
    """Return the row of a version.

    Raises
    ------
    Absent
        If the version does not exist; the message states which versions exist.
    """
    for row in versions_in(connection, name, version=version):
        return row
    numbers = numbers_of(connection, name)
    if not numbers:
        raise Absent(f"Nothing is published under the name {name}.")
    raise Absent(f"{name} has no version {version}; {versions_up_to(numbers[-1])}.")


def load_version(workspace: Workspace, name: str, version: int) -> tuple[VersionRow, Artifact]:
    """Return the row of a version and its artifact."""
    with reading(workspace.ledger.engine) as connection:
        row = find_version(connection, name, version)
    return row, read_artifact(workspace.store, row.digest)


def version_facts(workspace: Workspace, name: str, version: int) -> dict[str, Any]:
    """Return all facts of the page of a version."""
    row, artifact = load_version(workspace, name, version)
    with reading(workspace.ledger.engine) as connection:
        aliases = aliases_in(connection, name).get((name, version), [])
        numbers = numbers_of(connection, name)
        lineage = lineage_facts(connection, row, artifact.manifest)
        actor = None if row.population is None else actors_of(connection, row.population).get(row.release)
    balance = None if row.population is None else workspace.ledger.statement(row.population, newest=0)
    manifest = artifact.manifest
    privacy, plan, outcome = (manifest.get(part) or {} for part in ("privacy", "plan", "outcome"))
    return {
        **row.facts(aliases),
        "actor": actor,
        "remaining": None if balance is None else balance.remaining,
        "allowed": None if balance is None else balance.budget.epsilon,
        "kind": manifest["kind"],
        "headline": artifact.headline(),
        "private": artifact.is_private,
        "mechanism": manifest.get("mechanism"),
        "epsilon": privacy.get("epsilon", row.epsilon),
        "delta": privacy.get("delta", row.delta),
        "relation": privacy.get("relation"),
        "unit": privacy.get("unit"),
        "rows_per_unit": privacy.get("rows_per_unit"),
        "statement": privacy_of(manifest),
        "guarantee": manifest.get("guarantee"),
        "clip_norm": manifest.get("clip_norm"),
        "noise_multiplier": plan.get("noise_multiplier"),
        "center": plan.get("center"),
        "verdict": outcome.get("verdict"),
        "quality": quality_of(outcome),
        "drift": outcome.get("drift"),
        "warnings": [*(manifest.get("warnings") or ())],
        "side_by_side": [],
        "measure": "loading",
        **(of_kind := kind_facts(artifact)),
        "lineage": lineage,
        "charts": {
            "scree": f"versions/{row.reference}/scree" if of_kind["spectrum"] else None,
            "loadings": f"versions/{row.reference}/loadings" if isinstance(artifact, PrivateSubspace) else None,
            "derived": f"versions/{row.reference}/derived"
            if isinstance(artifact, DerivedModel | Correlations)
            else None,
        },
        "before": max((each for each in numbers if each < version), default=None),
        "after": min((each for each in numbers if each > version), default=None),
    }


def noun_of(kind: str) -> str:
    """Return the noun for a kind of artifact, as used in a sentence."""
    return kind_named(kind).noun if kind in KINDS else kind


RUNS = (1, 2, 4, 12, 26, 52)
"""Numbers of future runs for which a page states the epsilon of each run."""
_PLAIN = r"[a-z0-9][a-z0-9._-]{0,99}"
_RELEASE = ("release", "mechanism", "epsilon", "delta", "state", "artifact", "damaged", "actor", "time")


def address_of(population: str) -> str:
    """Return a population's name as a part of an address; a name with unusual characters is replaced by its digest."""
    if re.fullmatch(_PLAIN, population):
        return population
    return "~" + hashlib.sha256(population.encode()).hexdigest()[:24]


def population_at(connection: sa.Connection, address: str) -> str:
    """Return the population for which `address_of` returns this address; raise `Absent` if there is none."""
    for population in populations_in(connection):
        if address_of(population) == address:
            return population
    raise Absent("This ledger has no budget of that population.")


def budget_page(workspace: Workspace, address: str) -> dict[str, Any]:
    """Return all facts of the page of a budget."""
    ledger = workspace.ledger
    with reading(ledger.engine) as connection:
        population = population_at(connection, address)
        streams = [
            {
                "stream": stream.name,
                "live": stream.is_live,
                "dataset": stream.terms.get("dataset"),
                "ticks": stream.ticks,
                "used": len(ticks_of(connection, stream.id)),
            }
            for stream in streams_in(connection)
            if stream.population == population
        ]
    facts = budget_facts(ledger, population)
    gaussian = [row for row in facts["releases"] if row["event"]["name"] == "gaussian" and row["state"] != "abandoned"]
    releases = [
        {**{name: row[name] for name in _RELEASE}, "event": event_text(row["event"])} for row in facts.pop("releases")
    ]
    history = [
        {name: row[name] for name in ("time", "release", "actor", "spent", "remaining")}
        for row in ledger.history(population)
    ]
    return {
        **facts,
        "voided": facts.get("voided", False),
        "releases": releases,
        "history": history,
        "streams": streams,
        "pacing": [pacing_facts(ledger, population, runs=runs) for runs in RUNS],
        "same_again": _same_again(ledger, population, gaussian),
        "charts": {"burn_down": f"budgets/{address}/burn-down" if history else None},
    }


def _same_again(ledger: Ledger, population: str, gaussian: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return how many more releases equal to the newest Gaussian release the budget admits; None if there is none."""
    if not gaussian:
        return None
    epsilon, delta = gaussian[-1]["epsilon"], gaussian[-1]["delta"]
    runs = runs_that_fit(ledger, population, epsilon=epsilon, delta=delta)
    return {"epsilon": epsilon, "delta": delta, "runs": runs}


def dataset_facts(workspace: Workspace) -> dict[str, Any]:
    """Return one row for each dataset.

    A row states the population, the number of columns, the declared bound on the number of records, the privacy unit
    and the time of ingest.
    """
    return {
        "datasets": [
            {
                "dataset": entry.name,
                "population": entry.population,
                "n_features": entry.n_features,
                "records_at_most": entry.records_at_most,
                **entry.privacy_unit.facts,
                "unit_in_words": str(entry.privacy_unit),
                "ingested": entry.created_at,
            }
            for entry in workspace.catalog.entries()
        ]
    }
