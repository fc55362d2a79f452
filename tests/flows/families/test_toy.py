"""A toy family from plan to audit: a new family needs one file and its rows in the tables.

The toy family is planned, charged, released, stored as an artifact, registered, used from the command and audited, and
no other module refers to it.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.files import KINDS
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Invalid
from dpca.registry.reader import Registry
from dpca_tasks.accounting import events
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.distributions import Gaussian, JointGaussian
from dpca_tasks.privacy import request
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.joint_sum import Part
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from flows import cli
from flows.families.base import FAMILIES
from flows.jobs import FLOWS
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command, facts_of
from tests.flows.families import toy

PROFILE = (
    *("profile", "profile", "people", "--clip-norm", "1.5", "--publish", "columns"),
    *("--epsilon", "1", "--delta", "1e-6", "--yes", "--json"),
)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy family in the tables of families, flows, artifacts, sensitivities and commands."""
    monkeypatch.setitem(FAMILIES, toy.ToyFamily.name, f"{toy.__name__}:TOY")
    monkeypatch.setitem(FLOWS, toy.ToyFamily.name, toy.profile_columns)
    monkeypatch.setitem(KINDS, toy.ToyProfile.kind, f"{toy.__name__}:ToyProfile")
    monkeypatch.setitem(request._ROWS, (toy.ROW.query, toy.ROW.distributions[0]), toy.ROW)
    monkeypatch.setitem(cli.NOUNS, "profile", f"{toy.__name__}:app")


@pytest.mark.parametrize("variant", [("--direct",), ()], ids=["direct", "prefect"])
@pytest.mark.usefixtures("prefect")
def test_a_new_family_is_planned_charged_released_published_and_loaded(
    ready: Path, dpca: Command, variant: tuple[str, ...], tmp_path: Path
) -> None:
    before = facts_of(ready)
    shown = json.loads(dpca(*PROFILE, "--dry-run", *variant).out)
    assert (shown["mechanism"], shown["fits"], facts_of(ready)) == ("toy_joint", True, before)
    ended = dpca(*PROFILE, *variant)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    assert (report["artifact"], report["spent"]) == ("columns@1", pytest.approx(1.0, abs=1e-3))
    again = json.loads(dpca(*PROFILE, *variant).out)
    assert (again["release"], again["reused"], again["spent"]) == (report["release"], True, report["spent"])

    loaded = Registry.open().load("columns")
    assert isinstance(loaded, toy.ToyProfile)
    assert loaded.counts.shape == loaded.energies.shape == (FEATURES,)
    described = Registry.open().show("columns@1")
    assert (described["n_columns"], described["manifest"]["kind"]) == (FEATURES, "toy_profile")
    output = tmp_path / "counts.csv"
    assert dpca("registry", "export", "columns", "--format", "csv", "--output", str(output)).status == 0
    assert np.loadtxt(output).shape == (FEATURES,)
    assert "profile" in dpca("registry", "export", "columns", "--format", "svg", "--output", "x.svg").complaint(1)
    (row,) = json.loads(dpca("budget", "show", "people", "--json").out)["releases"]
    assert (row["mechanism"], row["artifact"], row["state"]) == ("toy_joint", "columns@1", "committed")
    assert Workspace.open().ledger.verify() > 0


def test_commands_for_subspaces_refuse_a_profile_and_both_families_share_a_budget(ready: Path, dpca: Command) -> None:
    assert dpca(*PROFILE, "--direct").status == 0, ready
    assert dpca(*FIT, "--direct", "--yes").status == 0
    with pytest.raises(Invalid, match="columns@1 is a profile, but a subspace is needed"):
        Registry.open().load("columns", PrivateSubspace)
    assert "is a profile" in dpca("subspace", "refit", "columns", "--components", "1", "--publish", "x").complaint(1)
    rows = json.loads(dpca("budget", "show", "people", "--json").out)["releases"]
    assert {row["mechanism"] for row in rows} == {"toy_joint", "analyze_gauss"}


def test_the_audit_command_audits_a_new_family(dpca: Command) -> None:
    ended = dpca("audit", "--mechanism", "toy_joint", "--trials", "60", "--json")
    rows = json.loads(ended.out)
    assert (ended.status, {row["mechanism"] for row in rows}, len(rows)) == (0, {"toy_joint"}, 3)


@pytest.mark.parametrize(
    ("divisor", "trials"),
    [
        pytest.param(3.0, 300, marks=pytest.mark.audit),
        pytest.param(1.0, 1500, marks=pytest.mark.audit_only),  # `make test` runs 60 trials through the command
    ],
)
def test_an_attack_finds_a_part_whose_bound_is_too_small(
    divisor: float, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divide the noise by 3: the audit must find at least three times the epsilon; with all noise, the claim holds.

    All of eight seeds find the planted mistake in 300 trials, at an epsilon of 1.7 or more.
    """
    parts = toy.ColumnProfile.parts.fget  # type: ignore[attr-defined]

    def shrunk(self: toy.ColumnProfile) -> dict[str, Part]:
        return {name: replace(part, bound=part.bound / divisor) for name, part in parts(self).items()}

    monkeypatch.setattr(toy.ColumnProfile, "parts", property(shrunk))
    subject = toy.ToyFamily.audit
    finding = audit_mechanism(toy.JointProfile(), relation="add_remove", subject=subject, trials=trials)
    assert finding.passed is (divisor == 1.0)
    assert finding.bound > 0.3


QUERY = toy.ColumnProfile(n_features=3, clip_norm=2.0, relation="add_remove", bits=toy.BITS)
ROWS = ArrayBlocks(np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.5]]))


def test_parts_are_summed_exactly_and_noised_by_their_own_bounds() -> None:
    exact = QUERY.split(exact_sum(ROWS, QUERY))
    assert exact["counts"].tolist() == [toy.COUNT_STEPS, toy.COUNT_STEPS, 2 * toy.COUNT_STEPS]
    assert (exact["energies"] / 4**toy.BITS).tolist() == [1.0, 0.25, 0.25 + 0.0625]
    noise = JointGaussian(noise_multiplier=3.0)
    residuals: dict[str, list[float]] = {"energies": [], "counts": []}
    for trial in range(400):
        reservation = InMemoryReservation(event=noise.event, key=trial.to_bytes(32, "little"))
        noisy = Curator(ROWS, reservation).release_parts(QUERY, noise)
        for name, part in QUERY.parts.items():
            residuals[name] += list(noisy[name] - exact[name] * part.unit / part.steps_per_unit)
    stds = {name: float(np.std(values)) for name, values in residuals.items()}
    # 1,200 draws of each part: a std is off by more than 9 % at most once in 10^5
    assert stds["energies"] == pytest.approx(3.0 * 4.0 / 0.75**0.5, rel=0.09)
    assert stds["counts"] == pytest.approx(3.0 * 3.0**0.5 / 0.25**0.5, rel=0.09)
    both = np.corrcoef(residuals["energies"], residuals["counts"])[0, 1]
    assert abs(both) < 0.13  # 4.5 standard errors


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_no_record_moves_a_part_by_more_than_its_bound(relation: str) -> None:
    """Try 300 pairs of random records in each relation, some with duplicates and huge values.

    No part of the sum may change by more than its bound.
    """
    query = toy.ColumnProfile(n_features=3, clip_norm=2.0, relation=relation, bits=toy.BITS)  # type: ignore[arg-type]
    random = np.random.default_rng(5)
    worst = dict.fromkeys(query.parts, 0.0)
    for _ in range(300):
        one, other = (random.normal(size=(1, 3)) * 10.0 ** random.integers(-2, 3, (1, 3)) for _ in range(2))
        there = {"add_remove": ROWS_OF(), "zero_out": ROWS_OF(0.0 * one), "replace_one": ROWS_OF(other)}[relation]
        moved = query.split(exact_sum(ROWS_OF(one), query) - exact_sum(there, query))
        for name, part in query.parts.items():
            worst[name] = max(worst[name], float(np.linalg.norm(moved[name])) / part.steps_per_unit)
    for name, part in query.parts.items():
        assert 0.5 * part.bound < worst[name] <= part.bound


def ROWS_OF(*records: np.ndarray) -> ArrayBlocks:
    return ArrayBlocks(np.vstack([np.zeros((1, 3)), *records]))


def test_one_event_covers_all_parts_and_a_step_is_answered_once() -> None:
    noise = JointGaussian(noise_multiplier=3.0)
    reservation = InMemoryReservation(event=noise.event, key=bytes(32))
    assert events.count_steps(noise.event) == 1
    first = Curator(ROWS, reservation).release_parts(QUERY, noise)
    again = Curator(ROWS, reservation).release_parts(QUERY, noise)
    for name in QUERY.parts:
        np.testing.assert_array_equal(first[name], again[name])


def test_parts_of_a_joint_query_are_released_only_with_joint_noise() -> None:
    reservation = InMemoryReservation(event=events.gaussian(3.0))
    with pytest.raises(InvalidInput, match="toy_profile 1 is proved for Gaussian noise"):
        Curator(ROWS, reservation).release(QUERY, Gaussian(noise_multiplier=3.0))


def test_shares_above_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    part = QUERY.parts["counts"]
    monkeypatch.setattr(toy.ColumnProfile, "parts", property(lambda _: {"one": part} | dict.fromkeys("abcd", part)))
    with pytest.raises(InvalidInput, match="shares"):
        toy.ColumnProfile(n_features=3, clip_norm=2.0, relation="add_remove", bits=toy.BITS)
