"""What families of private estimates share: a release by any reference, a mechanism made of it, and what is stated."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import Estimate, Mechanism, PrivacyTarget
from flows.families.base import Family, PlannedRelease, chosen, release_facts
from flows.requests.evaluation import EvaluationRequest
from storage.artifacts.estimate import PrivateEstimate
from storage.datasets.catalog import Entry
from storage.registry.pointers import Resolved


class EvaluatedRelease(Protocol):
    """A loaded release that is to be evaluated."""

    @property
    def version(self) -> Resolved: ...  # noqa: D102
    @property
    def is_private(self) -> bool: ...  # noqa: D102
    @property
    def mechanism(self) -> Mechanism[Estimate]: ...  # noqa: D102


class EvaluationFamily[R: EvaluationRequest, E: EvaluatedRelease](Family[R, Estimate]):
    """Private estimates of how good releases of one kind are."""

    artifact = PrivateEstimate

    @abstractmethod
    def evaluated(self, request: R) -> E:
        """Load what a request evaluates."""

    def about(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return what an estimate states of its request besides the release."""
        return {}

    def build(self, request: R) -> Mechanism[Estimate]:
        """Build the mechanism, of what was released."""
        name = chosen(request, "mechanism")
        if request.settings:
            raise InvalidInput(f"{name} has no setting {next(iter(request.settings))!r}; it takes no settings.")
        return self.evaluated(request).mechanism

    def resolved(self, request: R, snapshot: Entry, *, relation: Relation, target: PrivacyTarget) -> R:
        """Return a request with its alias replaced by the version that it means now."""
        return dataclasses.replace(request, artifact=str(self.evaluated(request).version))

    def asked(self, request: R) -> Sequence[Any]:
        """Return the digest of what is evaluated: the same by any reference."""
        return [self.evaluated(request).version.digest]

    def parameters(self, mechanism: Mechanism[Estimate]) -> Mapping[str, Any]:
        """Return nothing: the arrays of a mechanism are those of what is evaluated."""
        return {}

    def stated(self, planned: PlannedRelease[R]) -> Mapping[str, Any]:
        """Return what is evaluated."""
        version = self.evaluated(planned.request).version
        return {"evaluated": str(version), "evaluated_digest": version.digest, **self.about(planned)}

    def state(
        self, planned: PlannedRelease[R], result: Estimate, *, release_id: str, feature_names: Sequence[str] | None
    ) -> PrivateEstimate:
        """State the noisy sums, the estimates, and what they are of."""
        facts = release_facts(self, planned, release_id=release_id)
        return PrivateEstimate(sums=result.sums, manifest={**facts, "outcome": dict(result.outcome)})


def check_private(evaluated: EvaluatedRelease) -> None:
    """Refuse a release about which no estimate is private.

    Raises
    ------
    Refused
        When it is a reference without a guarantee.
    """
    if not evaluated.is_private:
        raise Refused(
            f"{evaluated.version} is not private, so an estimate about it would not be either; "
            "evaluate a private release, or leave out --release."
        )
