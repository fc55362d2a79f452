"""Mechanisms over several sites: each holds rows of its own, and only noised or masked sums leave it."""

from typing import Any

from dpca_tasks.mechanisms.sites.cape_agn import CapeAgn
from dpca_tasks.mechanisms.sites.cape_pca import CapePca
from dpca_tasks.mechanisms.sites.dps_pca import DpsPcaOfSites
from dpca_tasks.mechanisms.sites.noised_moments import Conv, ConvAgn, DpDis, Local, LocalAgn

METHODS: dict[str, type[Any]] = {method.name: method for method in (CapePca, Conv, DpDis, DpsPcaOfSites, Local)}
"""The methods for a subspace by name."""

TENSOR_METHODS: dict[str, type[Any]] = {method.name: method for method in (CapeAgn, ConvAgn, LocalAgn)}
"""The methods for components of a model by name."""

OVER_ROSTER: dict[str, type[Any]] = {**METHODS, CapeAgn.name: CapeAgn}
"""Those whose sites may be processes of their own. The others for components ask a site twice for noised sums of its
own, which is a baseline over datasets alone."""
