"""Access to published private subspaces, embeddings and topics, and to the pipeline that releases new ones.

A consumer of published results needs only `load` and `Registry`, which read files and start no process. The other
public names belong to the pipeline, whose dependencies are optional extras of the distribution ``dpca-pipeline``. Each
public name is imported when it is first used.

Examples
--------
>>> import dpca
>>> sorted(dpca.__all__)[:4]
['Budget', 'PrivateMatrixFactorization', 'PrivatePCA', 'Registry']

::

    news = dpca.load("news@champion")
    scores = news.transform(rows)

See Also
--------
dpca.registry.reader.Registry : Lists and loads every published version, alias and fact.
"""

from pkgutil import resolve_name
from typing import Any

from dpca.installed import check_not_hidden, needing

__all__ = [
    "Budget",
    "PrivateMatrixFactorization",
    "PrivatePCA",
    "PrivateRidge",
    "Registry",
    "Workspace",
    "fit_subspace",
    "load",
    "open_budget",
]

_PLACES = {
    "Budget": "flows.estimators.memory:InMemoryBudget",
    "PrivateMatrixFactorization": "flows.estimators:PrivateMatrixFactorization",
    "PrivatePCA": "flows.estimators:PrivatePCA",
    "PrivateRidge": "flows.estimators:PrivateRidge",
    "Registry": "dpca.registry.reader:Registry",
    "Workspace": "storage.workspace:Workspace",
    "fit_subspace": "flows.calls:fit_subspace",
    "load": "dpca.registry.reader:load",
    "open_budget": "flows.calls:open_budget",
}
"""The import path of each name. A string imports nothing: the pipeline and the array libraries load on first use."""


def __getattr__(name: str) -> Any:
    """Import a public name of this package when it is first used.

    Raises
    ------
    AttributeError
        If this package has no public name `name`.
    NotInstalled
        If a package that the name needs is not installed, or another module hides a package of the pipeline.
    """
    if name not in _PLACES:
        raise AttributeError(f"module 'dpca' has no attribute {name!r}")
    if not _PLACES[name].startswith("dpca."):
        check_not_hidden()
    with needing(f"dpca.{name}"):
        globals()[name] = resolve_name(_PLACES[name])
    return globals()[name]


def __dir__() -> list[str]:
    """List the public names, including those of the pipeline."""
    return [*__all__]
