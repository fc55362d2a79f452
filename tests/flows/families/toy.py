"""A family of releases that exists only in the tests: noisy energies and counts of columns.

This file contains everything that a new family needs, which a real family divides among the files of the packages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import Field

from dpca.artifacts.base import Artifact, checked_manifest, frozen, npz
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import Relation
from dpca_tasks.audit.attacks import AuditSubject, Neighbours, worst_neighbours
from dpca_tasks.layouts import Layout
from dpca_tasks.mechanisms.base import Mechanism, Plan, PrivacyTarget, Terms, check_target
from dpca_tasks.noise.distributions import JointGaussian
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.request import Row
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.records.blocks import RowBlock
from flows.commands.releasing import fit_command
from flows.families.base import Family, PlannedRelease, build_mechanism, release_facts
from flows.families.columns import Columns
from flows.jobs import release_flow
from flows.requests import MECHANISM, Request
from storage.datasets.catalog import Entry
from storage.ledger.budgets import RECORDS_AT_MOST
from storage.options import Handling, option_record

BITS, COUNT_STEPS = 10, 1 << 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnProfile(JointSum):
    """Query for the sum of squares of each column, and for the number of records with a nonzero value in it.

    Notes
    -----
    Sensitivity. The squares of a clipped record add up to at most 1 in units of the squared clip norm. So they change
    by at most 1 in l1 and l2, and by at most ``sqrt 2`` when one record replaces another. A record has nonzero values
    in at most d columns, and counts once in each: ``sqrt d`` in l2, also between two records.
    """

    name: ClassVar[str] = "toy_profile"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def parts(self) -> Mapping[str, Part]:
        """Return the two parts of the sum: energies on the grid of squares, and counts on a separate grid."""
        columns = Layout(kind="vector", order=self.n_features)
        energy = math.sqrt(2.0) if self.relation == "replace_one" else 1.0
        return {
            "energies": Part(
                layout=columns,
                bound=math.nextafter(energy, math.inf),
                share=0.75,
                unit=self.clip_norm**2,
                steps_per_unit=4**self.bits,
            ),
            "counts": Part(
                layout=columns,
                bound=math.nextafter(math.sqrt(self.n_features), math.inf),
                share=0.25,
                unit=1.0,
                steps_per_unit=COUNT_STEPS,
            ),
        }

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the squares and the number of nonzero values of each column."""
        parts = self.split(total)
        np.add.at(parts["energies"], block.indices, block.values.astype(np.int64) ** 2)
        for first, last in zip(block.record_ptr[:-1], block.record_ptr[1:], strict=True):
            stored = slice(block.row_ptr[first], block.row_ptr[last])
            parts["counts"][np.unique(block.indices[stored][block.values[stored] != 0])] += COUNT_STEPS


ROW = Row("toy_profile 1", ("JointGaussian",), "joint", 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTerms(Terms):
    """The public facts that a plan of a profile needs."""

    n_features: int
    clip_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The released energies and counts of all columns."""

    energies: NDArray[np.float64]
    counts: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointProfile:
    """The mechanism: one joint release of both parts."""

    rounded: bool = False
    name: ClassVar[str] = "toy_joint"

    def plan(self, problem: ProfileTerms, target: PrivacyTarget) -> Plan:
        """Calibrate the joint noise of both parts."""
        check_target(problem, target)
        noise = JointGaussian(noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta))
        return Plan(
            mechanism=self.name,
            problem=problem,
            target=target,
            noise_multiplier=noise.noise_multiplier,
            bits=BITS,
            event=noise.event,
            notes=() if problem.n_features < 1000 else ("many columns",),
        )

    def run(self, curator: Curator, plan: Plan) -> Profile:
        """Release both parts of the profile with joint noise."""
        facts = plan.problem
        query = ColumnProfile(
            n_features=facts.n_features, clip_norm=facts.clip_norm, relation=facts.relation, bits=plan.bits
        )
        parts = curator.release_parts(query, JointGaussian(noise_multiplier=plan.noise_multiplier))
        return Profile(energies=parts["energies"], counts=np.rint(parts["counts"]) if self.rounded else parts["counts"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToyProfile(Artifact):
    """The artifact of a profile, which is not a subspace."""

    kind = "toy_profile"
    noun = "profile"
    dimensions = {"energies": ("column",), "counts": ("column",)}  # noqa: RUF012 - the base class declares a ClassVar
    exports = {"npz": npz, "csv": lambda made, _: ("\n".join(map(str, made.counts)) + "\n").encode()}  # noqa: RUF012

    energies: NDArray[np.float64]
    counts: NDArray[np.float64]
    manifest: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check the arrays and make them read-only."""
        for name in self.dimensions:
            object.__setattr__(self, name, frozen(name, getattr(self, name), ndim=1))
        shape = {"n_columns": len(self.energies)}
        facts = {"clip_norm": "number"}
        manifest = checked_manifest(self.manifest, kind=self.kind, facts=facts, shape=shape)
        object.__setattr__(self, "manifest", manifest)

    @classmethod
    def build(cls, arrays: Mapping[str, NDArray[np.float64]], manifest: Mapping[str, Any]) -> "ToyProfile":
        """Build the artifact from its stored arrays."""
        return cls(energies=arrays["energies"], counts=arrays["counts"], manifest=manifest)

    def summary(self) -> dict[str, Any]:
        """Return the number of columns for machines."""
        return {"n_columns": len(self.counts)}

    def headline(self) -> str:
        """Return the number of columns in words."""
        return f"{len(self.counts)} columns"


@option_record
class ToyRequest(Request):
    """A request for a profile."""

    family = "toy"

    clip_norm: Annotated[float, Field(description="Bound on a record's norm.", gt=0)]
    mechanism: Annotated[str, Field(description=MECHANISM), Handling(choices=("toy_joint",))] = "toy_joint"


def build_audited(name: str) -> Mechanism[Profile]:
    """Build the family's only mechanism for an audit."""
    return {"toy_joint": JointProfile()}[name]


def audited_problem(relation: Relation) -> ProfileTerms:
    """Return a problem of two columns for an audit."""
    return ProfileTerms(n_features=2, clip_norm=1.0, relation=relation)


def neighbours_of(_name: str, problem: ProfileTerms) -> tuple[Neighbours, ...]:
    """Return pairs of neighbors that differ in energy and in counts."""
    return worst_neighbours(problem.relation, n_features=problem.n_features, clip_norm=problem.clip_norm)


class ToyFamily(Family[ToyRequest, Profile]):
    """The toy family of releases."""

    name = ToyRequest.family
    request = ToyRequest
    terms = ProfileTerms
    mechanisms = {JointProfile.name: JointProfile}  # noqa: RUF012
    artifact = ToyProfile
    audit = AuditSubject(
        names=(JointProfile.name,),
        build=build_audited,
        problem=audited_problem,
        neighbours=neighbours_of,
        published=lambda _pair, _problem: lambda result: float(result.energies.sum() + result.counts.sum()),
    )

    def build(self, request: ToyRequest) -> Mechanism[Profile]:
        """Build the mechanism of a request."""
        return build_mechanism(self, request.mechanism, request.settings)

    def problem(self, request: ToyRequest, snapshot: Entry, *, relation: Relation) -> ProfileTerms:
        """Return the public facts of a request."""
        return ProfileTerms(
            relation=relation,
            records_at_most=snapshot.records_at_most or RECORDS_AT_MOST,
            n_features=snapshot.n_features,
            clip_norm=request.clip_norm,
        )

    def requested(self, request: ToyRequest) -> Sequence[Any]:
        """Return the clip norm of a request."""
        return [request.clip_norm]

    def state(
        self,
        planned: PlannedRelease[ToyRequest],
        result: Profile,
        *,
        release_id: str,
        columns: Columns,
    ) -> ToyProfile:
        """Return the artifact that states a released profile."""
        del columns
        facts = release_facts(self, planned, release_id=release_id)
        manifest = {**facts, "clip_norm": planned.request.clip_norm}
        return ToyProfile(energies=result.energies, counts=result.counts, manifest=manifest)


TOY = ToyFamily()


profile_columns = release_flow(ToyRequest, "toy-profile", "Release a profile: the flow of the family.")


app = typer.Typer()
app.command("profile")(fit_command(ToyRequest, "Release a profile: the command of the family."))


@app.callback()
def group() -> None:
    """Profiles of columns."""
