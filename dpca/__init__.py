"""Private subspaces, embeddings and topics: load what was published, and release anew where the pipeline is installed.

A consumer needs `load` and `Registry` alone, which read files and start nothing. The other names belong to the
pipeline, and what they need is an extra of the distribution ``dpca-pipeline``. Each is loaded when it is first used.

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
dpca.registry.reader.Registry : every version, alias and fact of what was published.
"""

from pkgutil import resolve_name
from typing import Any

from dpca.installed import check_not_hidden, needing

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

_PLACES = {
    "Budget": "flows.estimators.memory:InMemoryBudget",
    "PrivateMatrixFactorization": "flows.estimators:PrivateMatrixFactorization",
    "PrivatePCA": "flows.estimators:PrivatePCA",
    "Registry": "dpca.registry.reader:Registry",
    "Workspace": "storage.workspace:Workspace",
    "fit_subspace": "flows.calls:fit_subspace",
    "load": "dpca.registry.reader:load",
    "open_budget": "flows.calls:open_budget",
}
"""Where each name stands. A string is no import: nothing of the pipeline, and no array library, is loaded before."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used.

    Raises
    ------
    AttributeError
        If there is no such name.
    NotInstalled
        If a package that it needs is not installed, or something hides a package of the pipeline.
    """
    if name not in _PLACES:
        raise AttributeError(f"module 'dpca' has no attribute {name!r}")
    if not _PLACES[name].startswith("dpca."):
        check_not_hidden()
    with needing(f"dpca.{name}"):
        globals()[name] = resolve_name(_PLACES[name])
    return globals()[name]


def __dir__() -> list[str]:
    """List the public names, those of the pipeline included."""
    return [*__all__]
