"""A subspace that is to be evaluated on a dataset, checked: what its rows are, and that the columns agree."""

from dataclasses import dataclass

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.evaluation.captured_share import CapturedShare
from dpca_tasks.records.blocks import BlockSource
from flows.families.base import rows_by_policy
from flows.families.evaluated_columns import check_columns
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import Entry
from storage.registry.pointers import Resolved
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedSubspace:
    """A subspace with the version that it is."""

    version: Resolved
    subspace: PrivateSubspace

    @classmethod
    def of(cls, workspace: Workspace, reference: str) -> "EvaluatedSubspace":
        """Load a subspace by any reference.

        Raises
        ------
        NotFound, Invalid
            When there is none, or it is of another kind.
        InvalidInput
            When it states no clip norm, without which its rows are not known.
        """
        version = workspace.registry.resolve(reference)
        subspace = workspace.registry.load(f"{version.name}@sha256:{version.digest}", PrivateSubspace)
        if subspace.manifest.get("clip_norm") is None:
            raise InvalidInput(
                f"{version} states no clip_norm, so its records are not known; evaluate another release."
            )
        return cls(version=version, subspace=subspace)

    @property
    def is_private(self) -> bool:
        """Whether it keeps a guarantee."""
        return self.subspace.is_private

    @property
    def mechanism(self) -> CapturedShare:
        """The estimate of its components, around its mean."""
        return CapturedShare(components=self.subspace.components, mean=self.subspace.mean)

    @property
    def clip_norm(self) -> float:
        """The clip norm of the release."""
        return float(self.subspace.manifest["clip_norm"])

    def check_columns(self, workspace: Workspace, snapshot: Entry) -> None:
        """Refuse a dataset of other columns.

        Raises
        ------
        InvalidInput
            When their number differs, or the declared names do.
        """
        check_columns(
            workspace, snapshot, version=self.version, artifact=self.subspace, n_columns=self.subspace.n_features
        )

    def source(self, rows: BlockSource) -> BlockSource:
        """Return rows as the release had them: scaled to the clip norm where it says so."""
        policy = self.subspace.manifest.get("plan", {}).get("row_policy", "clip")
        return rows_by_policy(rows, policy=policy, clip_norm=self.clip_norm)
