"""The charts of pages as SVG, light and dark, drawn once for equal numbers; the pages state the same numbers in tables.

Matplotlib is imported when the first chart is asked for. It is not made for several threads, at its import either, so
one chart is drawn at a time.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, lru_cache
from threading import Lock
from typing import Any

from flows.reports.budget_facts import budget_facts
from flows.reports.charts import render, theme_of
from flows.reports.release_charts import budget_chart, loadings_chart, scree_chart
from flows.reports.spectrum import Spectrum, top_loadings
from flows.web.page_facts import LEADING, Absent, load_version, population_at, spectrum_of
from storage.artifacts.subspace import PrivateSubspace
from storage.database.engine import reading
from storage.workspace import Workspace

_KEPT = 256
_COLOR = re.compile(rb'(?:(?<=fill: )|(?<=stroke: )|(?<=fill=")|(?<=stroke="))#[0-9a-f]{6}\b')
_one_at_a_time = Lock()


def draw_scree(workspace: Workspace, name: str, version: str, *, theme: str) -> bytes:
    """Draw the eigenvalues of a version beside its noise, or raise `Absent`."""
    row, artifact = load_version(workspace, name, int(version))
    spectrum = spectrum_of(artifact) if isinstance(artifact, PrivateSubspace) else None
    if spectrum is None:
        raise Absent(f"{row.reference} has no eigenvalues to draw.")
    with _one_at_a_time:
        return in_theme(_scree(spectrum, row.reference), theme)


def draw_loadings(workspace: Workspace, name: str, version: str, *, theme: str) -> bytes:
    """Draw the largest loadings of the first component of a version, or raise `Absent`."""
    row, artifact = load_version(workspace, name, int(version))
    if not isinstance(artifact, PrivateSubspace):
        raise Absent(f"{row.reference} has no loadings to draw.")
    found = top_loadings(artifact, component=1, count=LEADING)
    pairs = tuple((each["feature"], each["loading"]) for each in found)
    with _one_at_a_time:
        return in_theme(_loadings(pairs, row.reference), theme)


def draw_burn_down(workspace: Workspace, address: str, *, theme: str) -> bytes:
    """Draw what each release left of a budget, or raise `Absent`."""
    with reading(workspace.ledger.engine) as connection:
        population = population_at(connection, address)
    facts = json.dumps(budget_facts(workspace.ledger, population))
    with _one_at_a_time:
        return in_theme(_burn_down(facts), theme)


def in_theme(chart: bytes, theme: str) -> bytes:
    """Return a light chart in a theme: the same lines and words in its colours, so that each chart is drawn once."""
    if theme == "light":
        return chart
    colors = _colors(theme)
    return _COLOR.sub(lambda found: colors.get(found[0], found[0]), chart)


@cache
def _colors(theme: str) -> dict[bytes, bytes]:
    """Return the colours of a theme by those of the light one."""
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
