"""Mechanisms over several sites: each site holds a part of the rows, and sends only noised or masked sums."""

from typing import Any

from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.dps_pca import DpsPcaOfSites
from dpca_tasks.mechanisms.sites.noised_moments import Conv, ConvAgn, DpDis, Local, LocalAgn

METHODS: dict[str, type[Any]] = {method.name: method for method in (CapePca, Conv, DpDis, DpsPcaOfSites, Local)}
"""The mechanisms over sites that release a subspace, by name."""

TENSOR_METHODS: dict[str, type[Any]] = {method.name: method for method in (CapeAgn, ConvAgn, LocalAgn)}
"""The mechanisms over sites that release the components of a tensor model, by name."""

OVER_ROSTER: dict[str, type[Any]] = {**METHODS, CapeAgn.name: CapeAgn}
"""The mechanisms whose sites may be separate processes. The other tensor mechanisms request noised sums from each site
twice; they are baselines, and run only over datasets in this process."""
