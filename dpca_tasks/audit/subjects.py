"""The interface of a mechanism family to an audit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.neighbours import Neighbours
from dpca_tasks.mechanisms.base import Mechanism, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The functions with which an audit attacks a family of mechanisms.

    Parameters
    ----------
    names : tuple of str
        The mechanisms to audit.
    build : callable
        Builds a mechanism by name, with cheap settings.
    problem : callable
        Returns the public facts of the audited problem in a relation.
    neighbours : callable
        Returns the worst pairs of neighbouring datasets for the name of a mechanism and a problem.
    published : callable
        Returns, for a pair and a problem, a statistic of a result that is larger when the left dataset was used.
    """

    names: tuple[str, ...]
    build: Callable[[str], Mechanism[Any]]
    problem: Callable[[Relation], Terms]
    neighbours: Callable[[str, Any], tuple[Neighbours, ...]]
    published: Callable[[Neighbours, Any], Callable[[Any], float]]
