"""A joint release is published with its sites' releases as lineage, in a ledger that was charged nothing."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from storage.artifacts.files import write_artifact
from storage.database import tables
from storage.database.engine import transaction
from storage.errors import Conflict, Corrupt
from storage.home import store
from storage.registry.agreement import compare_artifacts
from storage.registry.owners import owners_of
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.storage.artifacts.test_subspace import make_subspace

JOINT = "joint-" + 32 * "a"
SITES = [{"site": "north", "release": 32 * "1"}, {"site": "south", "release": 32 * "2"}]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    return tmp_path / "home"


def written(joint_id: str = JOINT, sites: object = SITES, epsilon: float = 1.0) -> str:
    plain = make_subspace()
    facts = {"release": joint_id, "plan": {"sites": sites}, "privacy": {"epsilon": epsilon}}
    artifact = replace(plain, manifest={**plain.manifest, **facts})
    return write_artifact(artifact, home=Path(os.environ["DPCA_HOME"]), place=store())


def published(name: str = "map", *, digest: str | None = None) -> int:
    workspace = Workspace.open()
    return workspace.publish_joint(JOINT, name=name, artifact_digest=digest or written(), sites=SITES)


def owners() -> frozenset[str | None]:
    with Workspace.open().ledger.transaction() as connection:
        return owners_of(connection, "map")


def test_a_name_with_a_joint_version_is_of_no_population_alone(home: Path) -> None:
    assert owners() == frozenset()
    published()
    assert owners() == {None}


def test_the_same_joint_release_is_the_same_version_and_is_shown_by_the_registry(home: Path) -> None:
    assert [published(), published(), published("other")] == [1, 1, 1]
    workspace = Workspace.open()
    assert workspace.digest_of_joint(JOINT) == written()
    assert workspace.digest_of_joint("joint-" + 32 * "b") is None
    shown = Registry.open().show("map")
    assert (shown["artifact"], shown["release"], shown["manifest"]["plan"]["sites"]) == ("map@1", JOINT, SITES)
    assert workspace.ledger.verify() > 0
    with transaction(workspace.ledger.engine) as connection:
        assert compare_artifacts(connection, workspace.store) == 2
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.release)).scalar() == 0


def test_a_joint_release_has_one_artifact_under_any_name(home: Path) -> None:
    published()
    for name in ("map", "other"):
        with pytest.raises(Conflict, match="map@1 is release joint-"):
            published(name, digest=written(epsilon=2.0))


def test_a_row_that_is_changed_by_hand_or_an_artifact_of_other_sites_is_found(home: Path) -> None:
    published()
    workspace = Workspace.open()
    for statement in (
        tables.joint_version.update().values(digest="f" * 64),
        tables.joint_version.delete(),
    ):
        with pytest.raises(IntegrityError), workspace.ledger.engine.begin() as connection:
            connection.execute(statement)
    other = written("joint-" + 32 * "c", [])
    workspace.publish_joint("joint-" + 32 * "c", name="map", artifact_digest=other, sites=SITES)
    with (
        pytest.raises(Corrupt, match="map@2 tells of another joint release"),
        transaction(workspace.ledger.engine) as connection,
    ):
        compare_artifacts(connection, workspace.store)
    with workspace.ledger.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER joint_version_no_update")
        connection.execute(tables.joint_version.update().values(sites="[]"))
    with pytest.raises(Corrupt, match=r"row of map@1 does not say what the journal says \(sites\)"):
        workspace.ledger.verify()


@pytest.mark.parametrize("lost", ["database", "database and witness"])
def test_a_restored_ledger_enters_it_again_and_charges_nobody(home: Path, lost: str) -> None:
    Workspace.open()
    for file in home.glob("dpca.sqlite*"):
        shutil.copy(file, home.parent / file.name)
    published()
    for file in home.glob("dpca.sqlite*"):
        file.unlink()
    for file in home.parent.glob("dpca.sqlite*"):
        shutil.copy(file, home / file.name)
    if lost == "database and witness":
        shutil.rmtree(home.parent / "state")
    workspace = Workspace.open(accept_restored="the disk was lost")
    assert workspace.recharged == ()
    assert workspace.digest_of_joint(JOINT) == written()
    assert workspace.ledger.verify() > 0
    assert published() == 1
