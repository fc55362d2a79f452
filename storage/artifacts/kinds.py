"""The kinds of artifacts, by the name that a manifest states: what can be written, and what `Registry.load` returns."""

from storage.artifacts.base import Artifact
from storage.artifacts.embeddings import ItemEmbeddings
from storage.artifacts.estimate import PrivateEstimate
from storage.artifacts.subspace import PrivateSubspace
from storage.artifacts.tensor import TensorComponents

KINDS: dict[str, type[Artifact]] = {
    kind.kind: kind for kind in (PrivateSubspace, ItemEmbeddings, PrivateEstimate, TensorComponents)
}
