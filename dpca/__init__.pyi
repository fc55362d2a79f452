from dpca.registry.reader import Registry as Registry
from dpca.registry.reader import load as load
from flows.calls import fit_subspace as fit_subspace
from flows.calls import open_budget as open_budget
from flows.estimators import PrivateMatrixFactorization as PrivateMatrixFactorization
from flows.estimators import PrivatePCA as PrivatePCA
from flows.estimators.memory import InMemoryBudget as Budget
from storage.workspace import Workspace as Workspace

__all__ = [
    "Budget",
    "PrivateMatrixFactorization",
    "PrivatePCA",
    "Registry",
    "Workspace",
    "fit_subspace",
    "load",
    "open_budget",
]
