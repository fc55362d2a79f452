"""The artifact of components of a model: its arrays, and its public facts by the names of the manifest."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpca_tasks.mechanisms.base import Components
from storage.artifacts.tensor import TensorComponents


def state_components(
    result: Components, *, n_features: int, asked: int, warnings: Sequence[str], manifest: Mapping[str, Any]
) -> TensorComponents:
    """State components with their public facts.

    Parameters
    ----------
    result : Components
    n_features, asked : int
        Columns of a row, and the components that were asked for.
    warnings : sequence of str
        Of the plan; that fewer components were found is added.
    manifest : mapping
        The other public facts.
    """
    found = len(result.components) > 0
    said = [*warnings, *_found_less(result, asked=asked)]
    return TensorComponents(
        components=result.components if found else None,
        weights=result.weights if found else None,
        eigenvalues=result.eigenvalues if len(result.eigenvalues) else None,
        model=result.model,
        n_features=n_features,
        noise_variance=result.noise_variance,
        manifest={**({"warnings": said} if said else {}), **manifest, "outcome": dict(result.outcome)},
    )


def _found_less(result: Components, *, asked: int) -> tuple[str, ...]:
    """Warn of components that noise hid, from what was released."""
    found = len(result.components)
    if found == asked:
        return ()
    return (
        f"{found} of the {asked} components asked for stand above the noise; the others are left out, and the release "
        "is charged all the same.",
    )
