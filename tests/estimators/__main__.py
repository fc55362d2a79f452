"""Program that runs scikit-learn's checks of our estimators, and our tests of them, on its newest minor versions.

Each version gets a temporary environment: the wheel of this package and that scikit-learn, before the locked packages
of ``.venv``. Each failed check must be listed with its reason, and each listed check must fail in some version.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import hatchling.build
import numpy as np

from tests.estimators.child import SUBJECTS

ROOT = Path(__file__).parents[2]
CHILD = "tests.estimators.child"
TESTS = ("tests/__init__.py", "tests/flows/estimators", "tests/estimators", "tests/dpca/artifacts/test_subspace.py")
"""Files copied next to an environment: our tests of estimators, and the files that they use."""
VERSIONS = ("1.6", "1.7", "1.8", "1.9")
"""The newest four minor versions."""
COMPANIONS = ("polars",)
"""Packages that our tests use if they are installed."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this package in a folder."""
    with chdir(ROOT):
        return folder / hatchling.build.build_wheel(str(folder))


def install(folder: Path, wheel: Path, version: str) -> Path:
    """Create an environment with the wheel and a version of scikit-learn, and return the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--no-deps", wheel, f"scikit-learn=={version}.*"], check=True)
    subprocess.run([*pip, *COMPANIONS], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    locked = Path(np.__file__).parents[1]
    # the locked packages come after the environment's own ones, without editable installs
    (own / "locked.pth").write_text(f"{locked}\n")
    return python


def copy_tests(folder: Path) -> None:
    """Copy the tests to a folder that has no source of the package."""
    for name in TESTS:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)


def check(python: Path, folder: Path) -> dict[str, Any]:
    """Run scikit-learn's checks of our estimators, array API included, and return their outcomes."""
    done = subprocess.run([python, "-m", CHILD], cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["package"]).is_relative_to(python.parents[1]), "another package than the wheel's was checked"
    return found


def run_tests(python: Path, folder: Path) -> str:
    """Run our tests of estimators in an environment, and return the summary line.

    Raises
    ------
    SystemExit
        If a test fails.
    """
    options = ("-q", "-p", "no:cacheprovider", "-W", "error::flows.estimators.memory.RepeatedFitWarning")
    command: list[str | Path] = [python, "-m", "pytest", *options, "tests/flows/estimators"]
    done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return str(done.stdout.splitlines()[-1])


def clean() -> dict[str, str]:
    """Return the environment variables without those that would make other packages importable.

    One variable is set so that no check is skipped.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "SCIPY_ARRAY_API": "1"}


def unlisted(outcomes: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """Return the checks that neither passed nor are listed as expected failures.

    A skipped check counts as not passed, unless it is listed as left out.
    """
    return [
        f"{name}: {result['check']} {result['status']}: {result['error']}"
        for name, results in outcomes.items()
        for result in results
        if result["status"] != "passed" and result["check"] not in SUBJECTS[name].exceptions
        if (result["status"], result["check"]) not in {("skipped", check) for check in SUBJECTS[name].left_out}
    ]


def not_failed(found: Sequence[Mapping[str, Sequence[Mapping[str, str]]]]) -> list[str]:
    """Return a line for each check that is listed as a failure but failed in no version."""
    failed = {
        (name, result["check"])
        for outcomes in found
        for name, results in outcomes.items()
        for result in results
        if result["status"] == "failed"
    }
    return [
        f"{name}: {check} is listed, and fails nowhere"
        for name, subject in SUBJECTS.items()
        for check in subject.exceptions
        if (name, check) not in failed
    ]


def main() -> int:
    """Check every version of scikit-learn, print the results, and return 1 if any check is not as listed."""
    wrong, found, passed = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        for version in VERSIONS:
            folder = Path(name) / version
            python = install(folder / "environment", wheel, version)
            copy_tests(folder)
            report = check(python, folder)
            outcomes = report["outcomes"]
            wrong += [f"scikit-learn {report['scikit-learn']}: {line}" for line in unlisted(outcomes)]
            found.append(outcomes)
            for subject, results in outcomes.items():
                here = sum(result["status"] == "passed" for result in results)
                passed += here
                print(f"scikit-learn {report['scikit-learn']}: {subject}: {here} of {len(results)} checks passed")
            print(f"scikit-learn {report['scikit-learn']}: tests: {run_tests(python, folder)}", flush=True)
            shutil.rmtree(folder)
    wrong += not_failed(found)
    for name, subject in SUBJECTS.items():
        for check_name, reason in subject.exceptions.items():
            print(f"{name} is excepted from {check_name}: {reason}")
    print("\n".join(wrong))
    print(f"{passed} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
