"""A subspace as scikit-learn's own ``PCA``, in a file of skops: no pickle, and nothing of this package to load it."""

from collections.abc import Mapping

import numpy as np

from storage.artifacts.base import LinearMap
from storage.errors import Invalid


def scikit_model(subspace: LinearMap, tags: Mapping[str, str]) -> bytes:
    """Write a subspace as a fitted ``sklearn.decomposition.PCA``.

    Parameters
    ----------
    subspace : LinearMap
        One around the origin becomes a PCA whose mean is zero.
    tags : mapping of str to str
        The lineage, which becomes the attribute ``dpca_lineage_``.

    Raises
    ------
    Invalid
        If scikit-learn or skops is not installed.
    """
    try:
        import skops.io
        from sklearn.decomposition import PCA
    except ImportError as error:
        raise Invalid(
            f"format sklearn needs scikit-learn and skops, and {error.name} is not installed; install "
            "'dpca-pipeline[sklearn]'"
        ) from None
    found = PCA(n_components=subspace.n_components)
    found.components_ = np.array(subspace.components)
    found.mean_ = np.zeros(subspace.n_features) if subspace.mean is None else np.array(subspace.mean)
    found.n_components_, found.n_features_in_ = subspace.n_components, subspace.n_features
    if subspace.feature_names is not None:
        found.feature_names_in_ = np.array(subspace.feature_names, dtype=object)
    if (ratios := subspace.explained_variance_ratio) is not None:
        found.explained_variance_ratio_ = ratios
    found.dpca_lineage_ = dict(tags)
    payload: bytes = skops.io.dumps(found)
    return payload
