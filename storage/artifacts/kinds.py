"""The kinds of artifacts, by the name that a manifest states: what can be written, and what `Registry.load` returns."""

from collections.abc import Mapping
from typing import Any

from storage.artifacts.base import Artifact
from storage.artifacts.embeddings import ItemEmbeddings
from storage.artifacts.estimate import PrivateEstimate
from storage.artifacts.manifest import FORMAT, in_short
from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents
from storage.errors import Invalid

KINDS: dict[str, type[Artifact]] = {
    kind.kind: kind for kind in (PrivateSubspace, ItemEmbeddings, PrivateEstimate, TensorComponents)
}


def kind_of(manifest: Mapping[str, Any]) -> type[Artifact]:
    """Return the kind of artifact that a manifest states.

    Raises
    ------
    Invalid
        If it is of a later format, or of a kind that this version does not know.
    LookupError, TypeError
        If it states none, or is no mapping.
    """
    form, kind = manifest["format"], KINDS.get(str(manifest["kind"]))
    if form != FORMAT or kind is None:
        raise Invalid(
            f"artifact has format {in_short(form)} and kind {in_short(manifest['kind'])}; this version reads format "
            f"{FORMAT} and kind {', '.join(KINDS)}; upgrade dpca-pipeline"
        )
    return kind
