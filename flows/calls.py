"""Functions for programs and notebooks that open budgets and release subspaces without Prefect.

They have the same effect as the commands ``dpca budget open`` and ``dpca subspace fit --direct``. `dpca` exports them
as `dpca.open_budget` and `dpca.fit_subspace`.
"""

from typing import Any

from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.workspace import PopulationBudget, Workspace


def open_budget(
    population: str,
    *,
    epsilon: float,
    delta: float,
    dataset: str | None = None,
    publish: str | None = None,
    **terms: Any,
) -> PopulationBudget:
    """Open a population's privacy budget in the ledger of ``DPCA_HOME``, and return it for releases to charge.

    Parameters
    ----------
    population : str
        The population whose records are protected, such as ``"patients"``.
    epsilon, delta : float
        Total privacy loss and total failure probability of everything that is ever released about the population.
    dataset, publish : str, optional
        As in `storage.workspace.Workspace.budget`.
    **terms
        Further terms, as in `storage.ledger.ledger.Ledger.open_budget`: ``relation``, ``filter``, ``unit``, ...

    Returns
    -------
    PopulationBudget
        The ``budget`` argument of `dpca.PrivatePCA` and `dpca.PrivateMatrixFactorization`. A second call with the same
        terms returns the same budget.

    Raises
    ------
    Conflict, Invalid, Refused
        If the budget is already open with other terms, or a term is not allowed.

    See Also
    --------
    dpca.Budget : A budget in memory, which ends with the process.

    Examples
    --------
    >>> import dpca
    >>> import numpy as np
    >>> budget = dpca.open_budget("patients", epsilon=4, delta=1e-6)
    >>> model = dpca.PrivatePCA(1, epsilon=1, delta=1e-7, clip_norm=1, slot="2026-11", budget=budget)
    >>> model.fit(np.ones((1000, 3))).published_
    'subspace.patients@1'
    """
    workspace = Workspace.open()
    workspace.ledger.open_budget(population, epsilon=epsilon, delta=delta, **terms)
    return workspace.budget(population, dataset=dataset, publish=publish)


def fit_subspace(dataset: str, *, workers: int | None = None, **options: Any) -> PrivateSubspace:
    """Release a private subspace of a dataset, publish it, and return it, as ``dpca subspace fit --direct`` does.

    A second call with the same request returns the same release and costs nothing.

    Parameters
    ----------
    dataset : str
        A snapshot that `dpca dataset ingest` stored: ``name`` or ``name@number``.
    workers : int, optional
        Number of processes of a Dask cluster that is started for the sums. By default no cluster is started.
    **options
        The fields of `flows.requests.SubspaceRequest`: ``components``, ``epsilon``, ``delta``, ``clip_norm``,
        ``publish``, ``mechanism``, ``settings``, ...

    Returns
    -------
    PrivateSubspace
        The artifact, as `dpca.load` returns it.

    Raises
    ------
    BudgetExhausted
        If the budget does not admit the release; nothing is charged.
    InvalidInput, Invalid, NotFound, Refused
        If an option is outside its domain, a name is unknown, or the ledger does not allow it.

    Guarantees
    ----------
    The release is (``epsilon``, ``delta``)-differentially private under the neighboring relation of the population's
    budget.

    See Also
    --------
    dpca.PrivatePCA : The same release for rows in memory.

    Examples
    --------
    >>> import dpca
    >>> visits = dpca.fit_subspace("visits", components=2, epsilon=1, delta=1e-7, clip_norm=1, publish="visits-map")
    >>> visits.n_components, dpca.load("visits-map@1").is_private
    (2, True)
    """
    report = release_directly(SubspaceRequest(dataset=dataset, **options), workers=workers)
    return Registry(Workspace.open().store).load(report["artifact"], PrivateSubspace)
