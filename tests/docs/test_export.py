"""The commands of the page export.md work as they are typed; its other code is run by ``make exports``."""

import json
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flows.cli import main
from storage.artifacts.files import write_artifact
from storage.registry.pointers import Pointer
from storage.registry.reader import Registry
from tests.docs.reader import FENCED
from tests.exports.__main__ import BROWSER, ENGINES, NAME, PAGE, blocks, subspaces


def test_the_commands_work_as_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(home))
    subspace = subspaces()["around a mean"]
    pointer = Pointer(name=NAME, versions={1: write_artifact(subspace, home=home)}, aliases={"champion": 1})
    (home / Pointer.path(NAME)).parent.mkdir(parents=True)
    (home / Pointer.path(NAME)).write_bytes(pointer.encode())
    skops, io = ModuleType("skops"), ModuleType("skops.io")
    skops.io, io.dumps = io, lambda found: type(found).__name__.encode()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skops", skops)
    monkeypatch.setitem(sys.modules, "skops.io", io)
    for line in "".join(FENCED.findall(PAGE.read_text(encoding="utf-8"))).splitlines():
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    with np.load("census-map.npz") as archive:
        np.testing.assert_array_equal(archive["components"], subspace.components)
    assert json.loads(Path("census-map-mlflow/tags.json").read_text())["dpca.artifact"] == f"{NAME}@1"
    assert Path("census-map.skops").read_bytes() == b"PCA"
    written = Path("census-map.onnx").read_bytes()
    Registry.open().export(f"{NAME}@champion", "census-map.onnx", format="onnx")
    assert Path("census-map.onnx").read_bytes() == written


@pytest.mark.parametrize("engine", ENGINES)
def test_the_code_of_each_engine_is_whole(engine: str) -> None:
    code = blocks(ENGINES[engine][0])
    assert code
    for block in code:
        compile(block, PAGE.name, "exec")


def test_the_lock_of_the_page_names_no_host_and_has_a_hash_for_each_package() -> None:
    lock = (BROWSER / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in lock
    packages = {name: entry for name, entry in json.loads(lock)["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    imports = (BROWSER / "index.html").read_text(encoding="utf-8")
    assert all(f"./{name}/" in imports for name in packages)
