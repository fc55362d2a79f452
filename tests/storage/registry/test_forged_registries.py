"""Forged registries: with a pinned key, each field of each file and each file of an artifact is verified."""

import json
from pathlib import Path

from dpca.backends.local import LocalPlace
from dpca.errors import StorageError
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca.registry.roots import Root, SignedPointer, signature_path
from dpca.registry.trust import Trust
from tests.dpca.registry.test_trust import Forgetful
from tests.forger import forgeries
from tests.storage.registry.conftest import NAME, PINNED, publication


def is_refused(folder: Path) -> bool:
    """Return whether a changed registry is refused in one line."""
    registry = Registry(LocalPlace(folder), Trust(keys=(PINNED,), memory=Forgetful()))  # type: ignore[arg-type]
    try:
        registry.load(f"{NAME}@1")
    except StorageError as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_registry_is_refused_in_one_line(tmp_path: Path) -> None:
    made, other = (publication(tmp_path / name, LocalPlace(tmp_path / name)) for name in ("one", "other"))
    made.publish(epsilon=2.0)
    other.publish(epsilon=3.0)
    one, two = tmp_path / "one", tmp_path / "other"
    digest = made.versions[1]
    artifact = f"registry/artifacts/{digest}"
    paths = [Pointer.path(NAME), SignedPointer.path(NAME), Root.path(1), signature_path(digest)]
    of_another = {path: path for path in paths} | {signature_path(digest): signature_path(made.versions[2])}
    accepted: list[str] = []
    for path in [*paths, f"{artifact}/manifest.json"]:
        honest = (one / path).read_bytes()
        there = one if path.startswith(("registry/artifacts", "registry/signatures")) else two
        valid = there / of_another.get(path, path.replace(digest, made.versions[2]))
        for kind, forged in forgeries(json.loads(honest), json.loads(valid.read_bytes())):
            (one / path).write_text(json.dumps(forged, sort_keys=True, indent=2) + "\n")
            accepted += [] if is_refused(one) else [f"{path}: {kind}"]
        (one / path).write_bytes(valid.read_bytes())
        accepted += [] if is_refused(one) or valid.read_bytes() == honest else [f"{path}: replaced"]
        (one / path).unlink()
        accepted += [] if is_refused(one) else [f"{path}: dropped"]
        (one / path).write_bytes(honest)
    assert accepted == []
    assert not is_refused(one)
