"""What an audit needs to know of a family of mechanisms; everything else of it is the same for all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.audit.neighbours import Neighbours
from dpca_tasks.mechanisms.base import Mechanism, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """A family as an attacker sees it.

    Parameters
    ----------
    names : tuple of str
        The mechanisms that are audited.
    build : callable
        Builds the one of a name as it is audited: with little to compute.
    problem : callable
        Returns the public facts of the audited problem in a relation.
    neighbours : callable
        Returns the pairs of neighbouring datasets, for a mechanism's name and a problem, on which a breach shows most.
    published : callable
        Returns, for a pair and a problem, what turns a mechanism's result into a number that is larger when the left
        dataset was used.
    """

    names: tuple[str, ...]
    build: Callable[[str], Mechanism[Any]]
    problem: Callable[[Relation], Terms]
    neighbours: Callable[[str, Any], tuple[Neighbours, ...]]
    published: Callable[[Neighbours, Any], Callable[[Any], float]]
