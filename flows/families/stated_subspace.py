"""The artifact of a refined release: its arrays, and its public facts by the names of the manifest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.layouts import pack_symmetric
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.refinement.refined_release import RefinedRelease, verdict
from storage.artifacts.subspace import PrivateSubspace

_MEGABYTE = 1e6


def outcome_of(refined: RefinedRelease) -> dict[str, Any]:
    """Return what a release decided and says of itself; the verdict is its summary in one line."""
    decided = refined.subspace.outcome or {}
    facts = {**refined.facts(), **decided}
    noise = refined.subspace.noise
    said = verdict(facts, n_components=len(refined.subspace.components))
    return {**facts, **({} if noise is None else {"noise": dict(noise)}), "verdict": said}


def state_subspace(
    refined: RefinedRelease,
    *,
    raw: Subspace,
    keep_matrix: float,
    warnings: Sequence[str],
    manifest: Mapping[str, Any],
) -> PrivateSubspace:
    """State a refined release as an artifact.

    Parameters
    ----------
    refined : RefinedRelease
    raw : Subspace
        As the mechanism returned it; its leading directions are kept beside refined ones, where its matrix is not.
    keep_matrix : float
        Megabytes up to which the matrix is kept.
    warnings : sequence of str
    manifest : mapping
        The other public facts.
    """
    subspace = refined.subspace
    matrix = packed(subspace.released, keep_matrix=keep_matrix)
    facts = {"total_variance": subspace.total_variance, "warnings": list(warnings) or None}
    return PrivateSubspace(
        components=subspace.components,
        eigenvalues=subspace.eigenvalues,
        spectrum=subspace.spectrum,
        further=subspace.further,
        mean=subspace.mean,
        leading=_leading(raw) if refined.refined_by != "none" and matrix is None else None,
        matrix=matrix,
        manifest={
            **{name: fact for name, fact in facts.items() if fact is not None},
            "outcome": outcome_of(refined),
            **manifest,
        },
    )


def packed(matrix: NDArray[np.float64] | None, *, keep_matrix: float) -> NDArray[np.float64] | None:
    """Return the upper triangle of a symmetric matrix, row by row; None where it has more megabytes than are kept."""
    if matrix is None:
        return None
    order = len(matrix)
    size = matrix.itemsize * order * (order + 1) // 2
    return pack_symmetric(matrix) if size <= keep_matrix * _MEGABYTE else None


def _leading(raw: Subspace) -> NDArray[np.float64]:
    return raw.components if raw.further is None else np.vstack([raw.components, raw.further])
