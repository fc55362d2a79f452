"""Describe the components of a published tensor release: what a consumer may do without any credential."""

from typing import Any

from storage.artifacts.tensor import TensorComponents
from storage.registry.reader import Registry


def describe_components(reference: str, *, top_words: int) -> dict[str, Any]:
    """Return the components of a release by falling weight, each with its largest entries.

    Parameters
    ----------
    reference : str
        Published tensor components.
    top_words : int
        How many entries of each.
    """
    registry = Registry.open()
    resolved, release = registry.resolve(reference), registry.load(reference, TensorComponents)
    words = release.top_words(top_words)
    weights = [] if release.weights is None else release.weights.tolist()
    return {
        "artifact": str(resolved),
        "private": release.is_private,
        "model": release.model,
        "noise_variance": release.noise_variance,
        "components": [
            {"component": at, "weight": weight, "words": [{"word": word, "entry": entry} for word, entry in largest]}
            for at, (weight, largest) in enumerate(zip(weights, words, strict=True))
        ],
    }
