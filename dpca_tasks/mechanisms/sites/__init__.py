"""Mechanisms over several sites: each site holds its own rows, and sends only noised or masked sums."""

from typing import Any

from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.dps_pca import DpsPcaOfSites
from dpca_tasks.mechanisms.sites.noised_moments import Conv, ConvAgn, DpDis, Local, LocalAgn

METHODS: dict[str, type[Any]] = {method.name: method for method in (CapePca, Conv, DpDis, DpsPcaOfSites, Local)}
"""The methods for a subspace by name."""

TENSOR_METHODS: dict[str, type[Any]] = {method.name: method for method in (CapeAgn, ConvAgn, LocalAgn)}
"""The methods for the components of a tensor model by name."""

OVER_ROSTER: dict[str, type[Any]] = {**METHODS, CapeAgn.name: CapeAgn}
"""The methods whose sites may be separate processes. The other tensor methods request noised sums from a site twice;
they are baselines that run only over local datasets."""
