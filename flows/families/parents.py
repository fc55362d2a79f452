"""Earlier releases from which the release of a private subspace can start (warm start).

A warm start uses the directions, mean and noise of a published release of the same columns. All of them are public.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.pointers import Resolved
from dpca.registry.reader import Registry
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.base import Subspace
from dpca_tasks.mechanisms.warm_start import Start, gives_start, start_of
from flows.families.columns import Columns, check_same_columns
from flows.families.restated_subspace import released_from
from flows.requests import SubspaceRequest
from storage.ledger.budgets import RECORDS_AT_MOST

NONE = "none"
"""The value of ``like`` for a release without an earlier release."""


def parent_of(request: SubspaceRequest) -> str | None:
    """Return the reference of the earlier release from which a request starts; None if there is none."""
    return None if request.like == NONE else request.like


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parent:
    """An earlier release from which another release starts, with its version and its released second moment."""

    version: Resolved
    subspace: PrivateSubspace
    released: Subspace

    @classmethod
    def of(cls, reference: str) -> "Parent":
        """Load an earlier release from the local registry.

        Raises
        ------
        NotFound, Invalid, Corrupt
            When the reference does not exist, is not a subspace, or is damaged.
        Refused
            When the release is revoked, has no privacy guarantee, or contains no moment.
        """
        registry = Registry.open()
        version = registry.resolve(reference)
        subspace = registry.load(f"{version.name}@sha256:{version.digest}", PrivateSubspace)
        if not subspace.is_private:
            raise Refused(f"{version} is not private, so no private release may start from it; name a private release.")
        released = released_from(subspace)
        if released is None or not gives_start(released):
            raise Refused(
                f"{version} contains no released second moment with Gaussian noise, from which a release could start; "
                "name a release of analyze_gauss that keeps its matrix (--keep-matrix)."
            )
        return cls(version=version, subspace=subspace, released=released)

    @property
    def columns(self) -> Columns:
        """The columns of the release."""
        found = self.subspace
        return Columns(
            table=str(self.version),
            n_features=found.n_features,
            names=found.feature_names,
            encoder=found.manifest.get("encoder"),
        )

    @classmethod
    def pinned(cls, version: str, digest: str) -> "Parent":
        """Load an earlier release by its content, given its ``NAME@VERSION`` and its digest."""
        return cls.of(f"{version.partition('@')[0]}@sha256:{digest}")

    def start(self, *, center: str = "none") -> Start:
        """Compute the public facts that a warm start uses; for a release in rounds this combines all answers.

        Raises
        ------
        Refused
            When ``center`` is ``private``, and the earlier release has no mean.
        """
        manifest = self.subspace.manifest
        bound = manifest.get("privacy", {}).get("records_at_most")
        declared = None if bound == RECORDS_AT_MOST else bound
        found = start_of(self.released, clip_norm=float(manifest["clip_norm"]), records_at_most=declared)
        assert found is not None
        found.estimate(clip_norm=1.0, centred=center == "private")  # refuses a missing mean
        return found


def check_start(columns: Columns, start: Columns) -> None:
    """Refuse rows whose columns differ from ``start``, the columns of the earlier release.

    Raises
    ------
    InvalidInput
        When the numbers of columns, the declared names, their order, or the schemas differ.
    """
    check_same_columns(columns, start, rule="a release starts only from the same columns", named=True)


def with_start(mechanism: Any, start: Callable[[], Start]) -> Any:
    """Return a copy of a mechanism that loads the earlier release by ``start``; wrappers around it are kept."""
    if hasattr(mechanism, "mechanism"):
        return dataclasses.replace(mechanism, mechanism=with_start(mechanism.mechanism, start))
    return dataclasses.replace(mechanism, start=start)
