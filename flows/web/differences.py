"""Differences of two versions, and charts of pages.

A difference is computed from what both versions released: directions, eigenvalues, offsets or topics. It costs nothing.
Two subspaces are compared on the features that both have, by their declared names. Without names, both must have the
same number of features.

Each chart exists as SVG in a light and a dark theme. Drawn charts are cached, and reused for equal numbers. The pages
state the same numbers in tables. Matplotlib's drawing modules are imported when the first chart is requested.
Matplotlib is not thread-safe, not even during its import, so one chart is drawn at a time.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, lru_cache
from threading import Lock
from typing import Any

import matplotlib  # noqa: F401 - if it is missing, nothing is served, instead of pages without charts
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dpca.artifacts.base import Artifact
from dpca.artifacts.derived import Correlations, DerivedModel
from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.registry.pointers import Reference
from dpca_tasks.metrics import principal_angles
from flows.reports.budget_facts import budget_facts
from flows.reports.derived_charts import derived_chart
from flows.reports.release_charts import budget_chart, loadings_chart, render, scree_chart, theme_of
from flows.reports.spectrum import Spectrum, top_loadings
from flows.web.page_facts import LEADING, Absent, feature_names, load_version, numbers_in, population_at, spectrum_of
from storage.database.engine import reading
from storage.workspace import Workspace

_KEPT = 256
_COLOR = re.compile(rb'(?:(?<=fill: )|(?<=stroke: )|(?<=fill=")|(?<=stroke="))#[0-9a-f]{6}\b')
_one_at_a_time = Lock()


def draw_scree(workspace: Workspace, name: str, version: str, *, theme: str) -> bytes:
    """Return an SVG chart of a version's eigenvalues with its noise edge; raise `Absent` if it has no eigenvalues."""
    row, artifact = load_version(workspace, name, int(version))
    spectrum = spectrum_of(artifact) if isinstance(artifact, PrivateSubspace) else None
    if spectrum is None:
        raise Absent(f"{row.reference} has no eigenvalues to draw.")
    with _one_at_a_time:
        return in_theme(_scree(spectrum, row.reference), theme)


def draw_loadings(workspace: Workspace, name: str, version: str, *, theme: str) -> bytes:
    """Return an SVG chart of the largest loadings of a version's first component; raise `Absent` if it has none."""
    row, artifact = load_version(workspace, name, int(version))
    if not isinstance(artifact, PrivateSubspace):
        raise Absent(f"{row.reference} has no loadings to draw.")
    found = top_loadings(artifact, component=1, count=LEADING)
    pairs = tuple((each["feature"], each["loading"]) for each in found)
    with _one_at_a_time:
        return in_theme(_loadings(pairs, row.reference), theme)


def draw_derived(workspace: Workspace, name: str, version: str, *, theme: str) -> bytes:
    """Draw the correlations, coefficients or loadings of a derived version, or raise `Absent`."""
    row, artifact = load_version(workspace, name, int(version))
    if not isinstance(artifact, Correlations | DerivedModel):
        raise Absent(f"{row.reference} is not derived from a released second moment.")
    with _one_at_a_time:
        return render(derived_chart(artifact, name=row.reference, theme=theme))


def draw_burn_down(workspace: Workspace, address: str, *, theme: str) -> bytes:
    """Return an SVG chart of the budget left after each release; raise `Absent` if there is no such budget."""
    with reading(workspace.ledger.engine) as connection:
        population = population_at(connection, address)
    facts = json.dumps(budget_facts(workspace.ledger, population))
    with _one_at_a_time:
        return in_theme(_burn_down(facts), theme)


def in_theme(chart: bytes, theme: str) -> bytes:
    """Return a chart of the light theme with its colours replaced by the colours of another theme."""
    if theme == "light":
        return chart
    colors = _colors(theme)
    return _COLOR.sub(lambda found: colors.get(found[0], found[0]), chart)


@cache
def _colors(theme: str) -> dict[bytes, bytes]:
    """Return a mapping from the colours of the light theme to the colours of another theme."""
    light, other = asdict(theme_of("light")), asdict(theme_of(theme))
    series = zip(light.pop("series"), other.pop("series"), strict=True)
    return {old.encode(): new.encode() for old, new in [*series, *((light[name], other[name]) for name in light)]}


@lru_cache(maxsize=_KEPT)
def _scree(spectrum: Spectrum, name: str) -> bytes:
    return render(scree_chart(spectrum, name=name))


@lru_cache(maxsize=_KEPT)
def _loadings(pairs: tuple[tuple[str, float], ...], name: str) -> bytes:
    rows: list[Mapping[str, Any]] = [{"feature": feature, "loading": loading} for feature, loading in pairs]
    return render(loadings_chart(rows, component=1, name=name))


@lru_cache(maxsize=_KEPT)
def _burn_down(facts: str) -> bytes:
    return render(budget_chart(json.loads(facts)))


type Matrix = NDArray[np.float64]

_OF_ONE_KIND = (
    *("features", "angles", "overlap", "held_by_left", "held_by_right", "noise_edges", "eigenvalues", "mean_moved"),
    *("pairs", "moved", "typical_move"),
)
"""Names of facts that exist only for some kinds of artifacts; for other kinds the facts are None."""


def difference_facts(workspace: Workspace, left: str, right: str) -> dict[str, Any]:
    """Return the differences from one version, such as ``news@1``, to another.

    Raises
    ------
    Absent
        If one of the versions does not exist, or their kinds differ.
    """
    (row, before), (other, after) = (load_version(workspace, *_numbered(text)) for text in (left, right))
    if before.kind != after.kind:
        raise Absent(f"{left} is a {before.noun} and {right} a {after.noun}; compare two releases of one kind.")
    match before, after:
        case PrivateSubspace(), PrivateSubspace():
            found = _of_subspaces(before, after)
        case TensorComponents(), TensorComponents():
            found = _of_components(before, after)
        case ItemEmbeddings(), ItemEmbeddings():
            found = _of_items(before, after)
        case _:
            found = {}
    return {
        "left": row.facts(()),
        "right": other.facts(()),
        "kind": before.kind,
        "comparable": True,
        "numbers": _numbers(before, after),
        **dict.fromkeys(_OF_ONE_KIND),
        **found,
    }


def _numbered(text: str) -> tuple[str, int]:
    reference = Reference.parse(text)
    assert reference.version is not None
    return reference.name, reference.version


def _numbers(before: Artifact, after: Artifact) -> list[dict[str, Any]]:
    """Return one row for each fact in the manifest of either version, with both values."""
    sides = [_shown(artifact) for artifact in (before, after)]
    names = [*sides[0], *(name for name in sides[1] if name not in sides[0])]
    return [{"name": name, "left": sides[0].get(name), "right": sides[1].get(name)} for name in names]


def _shown(artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    privacy = manifest.get("privacy") or {}
    shown = {"mechanism": manifest.get("mechanism")}
    shown |= {name: privacy.get(name) for name in ("epsilon", "delta")} | {"clip_norm": manifest.get("clip_norm")}
    sizes = {name: manifest[name] for name in ("n_components", "n_features", "n_items", "rank") if name in manifest}
    return {**shown, **sizes, **numbers_in(manifest.get("outcome") or {})}


def _shared(before: Artifact, after: Artifact, counts: tuple[int, int]) -> tuple[list[int], list[int]] | None:
    """Return the column numbers of the common features in each version; None if features cannot be matched.

    The common features are in the order of the first version. Without declared names, features are matched by number.
    """
    if before.manifest.get("feature_names") is None or after.manifest.get("feature_names") is None:
        return ([*range(counts[0])],) * 2 if counts[0] == counts[1] else None
    places = {name: at for at, name in enumerate(feature_names(after, counts[1]))}
    left = [at for at, name in enumerate(feature_names(before, counts[0])) if name in places]
    names = feature_names(before, counts[0])
    return left, [places[names[at]] for at in left]


def _of_subspaces(before: PrivateSubspace, after: PrivateSubspace) -> dict[str, Any]:
    """Return principal angles, shares of captured variance, and eigenvalues of two subspaces.

    ``held_by_left`` is the share of the variance of the right components that the left subspace captures.
    ``held_by_right`` is the share of the left components that the right subspace captures. Both shares weight
    components by the released eigenvalues, and are 1 if the subspaces are equal.
    """
    columns = _shared(before, after, (before.n_features, after.n_features))
    if columns is None or not columns[0]:
        return {"comparable": False, "features": 0}
    bases = [_embedded(artifact.components, at) for artifact, at in zip((before, after), columns, strict=True)]
    angles = principal_angles(*bases)
    spectra = [spectrum_of(artifact) for artifact in (before, after)]
    values = [artifact.eigenvalues for artifact in (before, after)]
    return {
        "features": len(columns[0]),
        "angles": np.degrees(angles).tolist(),
        "overlap": float(np.square(np.cos(angles)).mean()),
        "held_by_left": _held(after.components[:, columns[1]], values[1], bases[0]),
        "held_by_right": _held(before.components[:, columns[0]], values[0], bases[1]),
        "noise_edges": [None if found is None else found.noise_edge for found in spectra],
        "eigenvalues": _side_by_side(values[0], values[1], [None if s is None else s.noise_edge for s in spectra]),
        "mean_moved": _moved(before, after, columns),
    }


def _embedded(components: Matrix, columns: list[int]) -> Matrix:
    """Return an orthonormal basis of the components restricted to some columns."""
    cut = components[:, columns]
    if cut.shape == components.shape:
        return cut
    _, sizes, rows = np.linalg.svd(cut, full_matrices=False)
    kept = rows[sizes > 1e-9]
    return kept if len(kept) else rows[:1]


def _held(components: Matrix, values: Matrix | None, basis: Matrix) -> float | None:
    """Return the share of the variance of components that a basis captures; None if no eigenvalue is positive."""
    weights = None if values is None else np.maximum(values, 0.0)
    if weights is None or not weights.sum() > 0.0:
        return None
    held = np.square(components @ basis.T).sum(axis=1)
    return float(min(weights @ held / weights.sum(), 1.0))


def _side_by_side(left: Matrix | None, right: Matrix | None, edges: list[float | None]) -> list[dict[str, Any]]:
    count = max(0 if values is None else len(values) for values in (left, right))
    rows = []
    for rank in range(count):
        pair = [None if values is None or rank >= len(values) else float(values[rank]) for values in (left, right)]
        noise = [
            value is not None and edge is not None and value <= edge for value, edge in zip(pair, edges, strict=True)
        ]
        change = None if None in pair or not pair[0] else pair[1] / pair[0] - 1.0  # type: ignore[operator]
        rows.append({"rank": rank + 1, "left": pair[0], "right": pair[1], "change": change, "in_noise": any(noise)})
    return rows


def _moved(before: PrivateSubspace, after: PrivateSubspace, columns: tuple[list[int], list[int]]) -> float | None:
    if before.mean is None or after.mean is None:
        return None
    return float(np.linalg.norm(after.mean[columns[1]] - before.mean[columns[0]]))


def _of_components(before: TensorComponents, after: TensorComponents) -> dict[str, Any]:
    """Return pairs of components of both versions, matched one to one with the least total distance."""
    columns = _shared(before, after, (before.n_features, after.n_features))
    if columns is None or before.components is None or after.components is None or not columns[0]:
        return {"comparable": False, "features": 0}
    left, right = before.components[:, columns[0]], after.components[:, columns[1]]
    distances = np.linalg.norm(left[:, None] - right[None], axis=2)
    rows, matched = linear_sum_assignment(distances)
    assert before.weights is not None
    assert after.weights is not None
    pairs = [
        {
            "left": int(row) + 1,
            "right": int(at) + 1,
            "distance": float(distances[row, at]),
            "weights": [float(before.weights[row]), float(after.weights[at])],
            "words": [[word for word, _ in side.top_words(3)[number]] for side, number in ((before, row), (after, at))],
        }
        for row, at in zip(rows, matched, strict=True)
    ]
    return {"features": len(columns[0]), "pairs": pairs}


def _of_items(before: ItemEmbeddings, after: ItemEmbeddings) -> dict[str, Any]:
    """Return the items whose offsets moved most, and the angles between the spans of the factors."""
    columns = _shared(before, after, (before.n_items, after.n_items))
    if columns is None or not columns[0]:
        return {"comparable": False, "features": 0}
    moved = after.offsets[columns[1]] - before.offsets[columns[0]]
    order = np.argsort(-np.abs(moved), kind="stable")[:LEADING]
    names = feature_names(before, before.n_items)
    angles: list[float] | None = None
    if before.factors is not None and after.factors is not None and len(columns[0]) > 1:
        spans = before.factors[columns[0]].T, after.factors[columns[1]].T
        angles = np.degrees(principal_angles(*spans)).tolist()
    return {
        "features": len(columns[0]),
        "angles": angles,
        "moved": [{"feature": names[columns[0][at]], "change": float(moved[at])} for at in order],
        "typical_move": math.sqrt(float(np.mean(moved**2))),
    }
