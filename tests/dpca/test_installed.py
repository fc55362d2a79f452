"""Installation and imports: a missing or hidden package is reported in one line.

Loading an artifact requires neither the pipeline nor the names of its packages.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dpca as public
from dpca.artifacts.files import write_artifact
from dpca.backends.local import LocalPlace
from dpca.errors import NotInstalled
from dpca.installed import _EXTRAS, OURS, missing_package
from dpca.registry.pointers import Pointer
from tests.dpca.artifacts.test_subspace import make_subspace

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RUN = "raise RuntimeError('this was run')\n"


def _file(place: Path) -> Path:
    found = place.with_suffix(".py")
    found.write_text(RUN)
    return found


def _package(place: Path) -> Path:
    place.mkdir()
    (place / "__init__.py").write_text(RUN)
    return place / "__init__.py"


def run(*words: str | Path, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder whose modules hide project modules of the same name."""
    environment = {**os.environ, "PYTHONPATH": f"{at}{os.pathsep}{ROOT}", "DPCA_HOME": str(at / "home"), **variables}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False, timeout=120)
    done.stderr = re.sub(r"(?m)^.* is read without a pinned root key, .*\n", "", done.stderr)
    return done


def without(*modules: str) -> str:
    """Return the first lines of a program in which the given modules cannot be imported."""
    return (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {modules!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working folder that contains a home with the published artifact ``news@1``."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    digest = write_artifact(make_subspace(), home=home, place=LocalPlace(home))
    pointer = home / Pointer.path("news")
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.write_bytes(Pointer(name="news", versions={1: digest}, aliases={}).encode())
    return tmp_path


@pytest.mark.parametrize("hide", [_file, _package], ids=["a file", "a package"])
@pytest.mark.parametrize("name", OURS)
def test_a_module_that_hides_a_package_is_named_and_artifacts_still_load(
    folder: Path, name: str, hide: Callable[[Path], Path]
) -> None:
    place = hide(folder / name)
    loads = "import dpca, numpy as np; print(dpca.load('news@1').transform(np.zeros((2, 7))).shape)"
    loaded = run("-c", loads, at=folder)
    assert (loaded.stdout, loaded.stderr) == ("(2, 3)\n", "")
    needs = run("-c", "import dpca; dpca.Workspace", at=folder)
    assert needs.returncode == 1
    assert f"NotInstalled: {place} hides the package {name!r} of dpca-pipeline" in needs.stderr.splitlines()[-1]
    command = run("-m", "dpca", "registry", "show", "news", at=folder)
    assert (command.returncode, command.stdout, len(command.stderr.splitlines())) == (1, "", 1)
    assert command.stderr.startswith(f"dpca: {place} hides the package {name!r}")
    assert "rename it, or run from another folder" in command.stderr


def test_a_folder_without_python_hides_nothing(folder: Path) -> None:
    (folder / "storage").mkdir()
    shown = run("-m", "dpca", "registry", "show", "news", at=folder)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "news@1" in shown.stdout


@pytest.mark.parametrize(
    ("missing", "name", "extra"),
    [
        ("sqlalchemy", "Workspace", "local"),
        ("sklearn", "PrivatePCA", "estimators"),
        ("pydantic", "fit_subspace", "local"),
    ],
)
def test_a_name_whose_package_is_missing_names_the_extra(tmp_path: Path, missing: str, name: str, extra: str) -> None:
    ended = run("-c", f"{without(missing)}import dpca; dpca.{name}", at=tmp_path)
    assert ended.returncode == 1
    message = ended.stderr.splitlines()[-1]
    assert message == (
        f"dpca.errors.NotInstalled: dpca.{name} needs {missing}, which is not installed; install dpca-pipeline[{extra}]"
    )


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("sqlalchemy", ("budget", "show", "people"), "pipeline"),
        ("starlette", ("serve",), "pipeline"),
        ("matplotlib", ("serve",), "plots"),
        ("pyarrow", ("transform", "news", "rows.csv", "--output", "scores.npy"), "local"),
        ("obstore", ("registry", "list"), "s3"),
    ],
)
def test_a_command_whose_package_is_missing_is_one_line(
    folder: Path, missing: str, words: tuple[str, ...], extra: str
) -> None:
    (folder / "rows.csv").write_text("a,b\n1,2\n")
    program = f"{without(missing)}from dpca.__main__ import main; sys.argv = ['dpca', *{words!r}]; sys.exit(main())"
    ended = run("-c", program, at=folder, DPCA_STORE_URL="s3://bucket/prefix" if missing == "obstore" else "")
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1), ended
    assert f"needs {missing}, which is not installed; install dpca-pipeline[{extra}]" in ended.stderr


def test_an_object_store_without_its_client_names_the_extra(tmp_path: Path) -> None:
    ended = run("-c", f"{without('obstore')}import dpca; dpca.load('news', registry='s3://bucket/prefix')", at=tmp_path)
    assert ended.stderr.splitlines()[-1].endswith("needs obstore, which is not installed; install dpca-pipeline[s3]")


def test_reading_rows_in_pieces_names_the_missing_extra_and_whole_rows_need_none(tmp_path: Path) -> None:
    (tmp_path / "whole.csv").write_text("a,b\n1,2\n")
    (tmp_path / "pieces.csv").write_text("who,what,value\n1,0,2\n")
    program = f"{without('duckdb')}from dpca.__main__ import main; sys.exit(main())"
    words = ("--records-at-most", "10", "--features", "2", "--direct", "--header")
    whole = run("-c", program, "dataset", "ingest", "whole.csv", "--name", "whole", *words, at=tmp_path)
    assert whole.returncode == 0, whole.stderr
    columns = ("--columns", "row=who,column=what,value=value")
    pieces = run("-c", program, "dataset", "ingest", "pieces.csv", "--name", "pieces", *columns, *words, at=tmp_path)
    assert (pieces.returncode, len(pieces.stderr.splitlines())) == (1, 1), pieces
    assert "needs duckdb, which is not installed; install dpca-pipeline[units]" in pieces.stderr


def test_every_package_of_the_table_is_required_by_its_stated_extra() -> None:
    for package, extra in _EXTRAS.items():
        names = {Requirement(text).name.replace("-", "_").lower() for text in EXTRAS[extra]}
        distribution = {"sklearn": "scikit_learn"}.get(package, package)
        indirect = {"starlette": "fastapi", "h5py": "anndata"}.get(distribution, distribution)
        assert indirect in names, (package, extra)


def test_a_damaged_package_of_the_project_is_reported_as_damaged() -> None:
    error = ModuleNotFoundError("No module named 'flows.gone'", name="flows.gone")
    assert "'flows', which is damaged; install dpca-pipeline again" in str(missing_package(error, what="x"))


def test_the_package_has_exactly_its_public_names() -> None:
    assert dir(public) == sorted(public.__all__)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        getattr(public, "other")  # noqa: B009 - the type checker would report the missing name
    assert issubclass(NotInstalled, ImportError)


def test_importing_the_package_loads_no_package_of_the_pipeline(tmp_path: Path) -> None:
    program = "import sys, dpca; print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    ended = run("-c", program, *OURS, "prefect", "dask", "sqlalchemy", "typer", "sklearn", "zarr", at=tmp_path)
    assert ended.stdout == "[]\n", ended.stderr
