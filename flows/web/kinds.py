"""What a page shows of each kind of artifact: its numbers by name, largest first. All of it is released."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import DpcaError
from flows.families.restated_subspace import noise_edge_of
from flows.reports.loadings import top_loadings
from flows.reports.spectrum import Spectrum
from storage.artifacts.base import Artifact
from storage.artifacts.embeddings import ItemEmbeddings
from storage.artifacts.estimate import PrivateEstimate
from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.errors import Invalid

LEADING = 10
"""How many features of a component, or items of a factor, are shown."""
_COMPONENTS = 20
_SPECTRUM = 64

type Loading = dict[str, Any]


def kind_facts(artifact: Artifact) -> dict[str, Any]:
    """Return what is particular to the kind of an artifact.

    Returns
    -------
    dict
        ``spectrum`` (values, noise edge and how many stand above it; None where there are no eigenvalues), and
        ``parts``: components, topics or factors with their leading ``loadings``, and how many there are.
    """
    match artifact:
        case PrivateSubspace():
            return {"spectrum": _spectrum(artifact), **_components(artifact)}
        case TensorComponents():
            return {"spectrum": None, **_topics(artifact)}
        case ItemEmbeddings():
            return {"spectrum": None, **_items(artifact)}
        case PrivateEstimate():
            return {"spectrum": None, "noun": "sum", "parts": [], "n_parts": 0}
    return {"spectrum": None, "noun": "part", "parts": [], "n_parts": 0}


def spectrum_of(artifact: PrivateSubspace) -> Spectrum | None:
    """Return the leading eigenvalues of a subspace beside its noise; None of directions alone.

    Where its plan does not follow from what it states, as other programs or versions may write it, no noise is stated.
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
    """Return the declared names of columns, or their numbers from 0."""
    names = artifact.manifest.get("feature_names")
    return [str(column) for column in range(count)] if names is None else names


def _spectrum(artifact: PrivateSubspace) -> dict[str, Any] | None:
    spectrum = spectrum_of(artifact)
    if spectrum is None:
        return None
    edge = spectrum.noise_edge
    shares = artifact.explained_variance_ratio
    rows = [
        {
            "rank": rank,
            "eigenvalue": value,
            "above_noise": None if edge is None else value > edge,
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
    return {"noun": "component", "weighs": "eigenvalue", "parts": parts, "n_parts": artifact.n_components}


def _topics(artifact: TensorComponents) -> dict[str, Any]:
    weights = [] if artifact.weights is None else artifact.weights.tolist()
    words = itertools.islice(artifact.top_words(LEADING), _COMPONENTS) if weights else ()
    parts = [
        {"part": number, "weight": weight, "loadings": [{"feature": word, "loading": size} for word, size in found]}
        for number, (weight, found) in enumerate(zip(weights, words, strict=False), start=1)
    ]
    noun = "topic" if artifact.model == "topics" else "centre"
    return {"noun": noun, "weighs": "weight", "parts": parts, "n_parts": artifact.n_components}


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
    """Return the leading entries in size, with their signs, ties by column."""
    order = np.argsort(-np.abs(values), kind="stable")[:LEADING]
    return [{"feature": names[column], "loading": float(values[column])} for column in order]


def numbers_in(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a release says of its own quality in single numbers and words, by name."""
    kept = (bool, int, float, str, type(None))
    return {
        name: value for name, value in outcome.items() if isinstance(value, kept) and name not in ("seed", "probes")
    }
