"""The subspace mechanisms: one module each, all with one interface, and the table of their names."""

from typing import Any

from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from dpca_tasks.mechanisms.subspace.dp_vrpca import DpVrpca
from dpca_tasks.mechanisms.subspace.dps_pca import DpsPca
from dpca_tasks.mechanisms.subspace.exponential import Exponential
from dpca_tasks.mechanisms.subspace.laplace import LaplaceMoment
from dpca_tasks.mechanisms.subspace.local_gaussian import LocalGaussian
from dpca_tasks.mechanisms.subspace.mod_sulq import ModSulq
from dpca_tasks.mechanisms.subspace.noisy_power import NoisyPower
from dpca_tasks.mechanisms.subspace.non_private import NonPrivate
from dpca_tasks.mechanisms.subspace.propose_test_release import ProposeTestRelease
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.mechanisms.subspace.wishart import Wishart

MECHANISMS: dict[str, type[Any]] = {
    mechanism.name: mechanism
    for mechanism in (
        AnalyzeGauss,
        DpSpca,
        DpVrpca,
        DpsPca,
        Exponential,
        LaplaceMoment,
        LocalGaussian,
        ModSulq,
        NoisyPower,
        ProposeTestRelease,
        SmoothSensitivity,
        Wishart,
    )
}
"""The private mechanisms by name; all of them are audited."""

REFERENCES: dict[str, type[Any]] = {NonPrivate.name: NonPrivate}
"""The reference mechanisms, which are not private and need an acknowledgement."""
