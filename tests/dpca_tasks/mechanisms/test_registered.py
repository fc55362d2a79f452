"""Registered mechanisms: they are found by file name, and their docstrings describe their settings."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from dpca_tasks.mechanisms import completion, sites, subspace, tensors
from dpca_tasks.mechanisms.registered import Mechanisms, settings_of

TABLES = {
    "subspace": (subspace.MECHANISMS, subspace.REFERENCES),
    "completion": (completion.MECHANISMS, completion.REFERENCES),
    "tensors": (tensors.MECHANISMS, tensors.REFERENCES),
}
LOADED = """
import sys
from dpca_tasks.mechanisms.subspace import MECHANISMS
assert "laplace" in MECHANISMS and "toy" not in MECHANISMS and len(list(MECHANISMS)) == len(MECHANISMS)
MECHANISMS["laplace"]
print(*(name for name in sys.modules if name.startswith("dpca_tasks.mechanisms.")))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    made = tmp_path / f"made_{tmp_path.name}"
    made.mkdir()
    (made / "__init__.py").touch()
    return made


@pytest.mark.parametrize("family", TABLES)
def test_each_mechanism_is_in_a_file_of_the_table_and_has_its_name(family: str) -> None:
    for table in TABLES[family]:
        for name, kind in table.items():
            assert kind.name == name
            assert Path(table.path(name)).with_suffix("").parts == tuple(kind.__module__.split("."))
            assert table.get(name) is kind
    assert "toy" not in table
    assert table.get("toy") is None


def test_a_mechanism_is_imported_when_it_is_looked_up() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    loaded = {name.removeprefix("dpca_tasks.mechanisms.") for name in done.stdout.split()}
    assert {name for name in loaded if name.startswith(("completion", "tensors", "sites", "streams"))} == set()
    assert {name for name in loaded if name.startswith("subspace.")} == {"subspace.laplace"}


def test_a_file_without_its_mechanism_is_named_with_the_fix(folder: Path) -> None:
    (folder / "toy.py").write_text("class Toy:\n    name = 'another'\n")
    table = Mechanisms.of_folder(folder.name)
    assert list(table) == ["toy"]
    with pytest.raises(TypeError, match=rf"{folder.name}/toy.py has no class whose `name` is 'toy'.*__init__.py"):
        table["toy"]
    assert list(Mechanisms.of_folder(folder.name, besides=("toy",))) == []


@pytest.mark.parametrize("family", TABLES)
def test_every_setting_has_a_sentence_of_help_and_bounds_that_hold_its_default(family: str) -> None:
    kinds = [kind for table in TABLES[family] for kind in table.values()]
    for kind in (*kinds, *sites.METHODS.values(), *sites.TENSOR_METHODS.values()):
        for setting in settings_of(kind):
            assert setting.help.endswith(".")
            assert len(setting.help) > len("A bound.")
            assert "`" not in setting.help
            assert setting.bounds.keys() <= {"ge", "gt", "le", "lt"}
            if setting.bounds and isinstance(setting.default, int | float):
                assert setting.default >= setting.bounds.get("ge", setting.default)
                assert setting.default > setting.bounds.get("gt", setting.default - 1)
                assert setting.default <= setting.bounds.get("le", setting.default)
                assert setting.default < setting.bounds.get("lt", setting.default + 1)


def test_help_comes_from_the_docstring_and_undocumented_settings_are_refused() -> None:
    @dataclass(frozen=True)
    class Toy:
        """A toy.

        Parameters
        ----------
        n_components : int
            k.
        steps, rounds : int
            How often, as in 1.5 of ``rate``. More is slower.

        Notes
        -----
        None.
        """

        n_components: int
        steps: int = field(default=3, metadata={"ge": 1})
        rounds: int = 2
        name: ClassVar[str] = "toy"

    first, second = settings_of(Toy)
    assert (first.name, first.default, first.bounds, first.hint) == ("steps", 3, {"ge": 1}, int)
    assert first.help == second.help == "How often, as in 1.5 of rate."

    @dataclass(frozen=True)
    class Silent(Toy):
        """Another.

        Parameters
        ----------
        n_components, steps, rounds
            As of `Toy`.
        """

        secret: int = 0

    Silent.__doc__ = (Silent.__doc__ or "").replace("As of `Toy`.", "Numbers.")
    with pytest.raises(TypeError, match=r"test_registered.py: the docstring of Silent has no parameter 'secret'"):
        settings_of(Silent)
