"""Private estimators with the conventions of scikit-learn.

They take rows in memory and start neither Prefect nor Dask. They plan, sum and add noise with the same code as the
commands. The rows never leave the process, except into the home folder of the ledger whose budget is spent.

>>> import numpy as np
>>> rows = np.random.default_rng(0).normal(size=(2_000, 5)) * [9.0, 3.0, 1.0, 1.0, 1.0]
>>> model = PrivatePCA(2, epsilon=2.0, delta=1e-6, clip_norm=20.0, budget=InMemoryBudget(epsilon=2.0, delta=1e-6))
>>> model.fit_transform(rows).shape
(2000, 2)
"""

from flows.estimators.factorization import PrivateMatrixFactorization
from flows.estimators.memory import InMemoryBudget, LearnedStepWarning, NoLedgerWarning, RepeatedFitWarning
from flows.estimators.pca import PrivatePCA
from flows.estimators.ridge import PrivateRidge

__all__ = [
    "InMemoryBudget",
    "LearnedStepWarning",
    "NoLedgerWarning",
    "PrivateMatrixFactorization",
    "PrivatePCA",
    "PrivateRidge",
    "RepeatedFitWarning",
]
