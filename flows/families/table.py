"""The families of releases, by the name with which a request is stored."""

from typing import Any

from flows.families.base import Family
from flows.families.completion import COMPLETION
from flows.families.completion_evaluation import COMPLETION_EVALUATION
from flows.families.subspace import SUBSPACE
from flows.families.subspace_evaluation import SUBSPACE_EVALUATION
from flows.families.tensors import TENSORS
from flows.requests.base import Request

FAMILIES: dict[str, Family[Any, Any]] = {
    family.name: family for family in (SUBSPACE, COMPLETION, TENSORS, SUBSPACE_EVALUATION, COMPLETION_EVALUATION)
}


def family_of(request: Request) -> Family[Any, Any]:
    """Return the family of a request."""
    return FAMILIES[request.family]
