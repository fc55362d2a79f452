"""Private subspaces: one module a mechanism, all of one shape, and the table of their names."""

from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.noisy_power import NoisyPower

MECHANISMS = {mechanism.name: mechanism for mechanism in (AnalyzeGauss, NoisyPower)}
