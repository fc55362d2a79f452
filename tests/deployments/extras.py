"""Program that installs the wheel with each extra in a separate environment, and prints the installed size.

    python -m tests.deployments.extras [EXTRA...]

For each extra, the program prints the number of distributions, their size without byte code, and whether ``pip check``
reports missing requirements.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

from tests.deployments.materials import ROOT, build_wheel

EXTRAS = ("", "tables", "s3", "local", "estimators", "pipeline", "plots", "units", "postgres", "anndata", "sklearn")
"""The extras for users; the empty one is the base."""
_TOOLS = {"pip", "setuptools", "wheel"}


def measured(extra: str, *, wheel: Path, folder: Path) -> tuple[int, float, bool]:
    """Install the wheel with an extra in a new environment.

    Return the number of distributions, their megabytes, and whether all requirements are installed.
    """
    place = folder / (extra or "base")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    wanted = f"dpca-pipeline[{extra}] @ {wheel.as_uri()}"
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--no-compile",
        wanted,
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    complete = subprocess.run([python, "-m", "pip", "check"], check=False, stdout=subprocess.DEVNULL).returncode == 0
    (packages,) = place.glob("lib/python*/site-packages")
    found = [one for one in distributions(path=[str(packages)]) if one.name not in _TOOLS]
    files = {Path(str(file.locate())) for one in found for file in one.files or [] if file.suffix != ".pyc"}
    size = sum(file.stat().st_size for file in files if file.is_file())
    shutil.rmtree(place)
    return len(found), size / 1e6, complete


def main(extras: list[str]) -> int:
    """Print a row for each extra; return 1 if requirements of an extra are missing."""
    with tempfile.TemporaryDirectory() as name:
        folder, sound = Path(name), True
        wheel = build_wheel(ROOT, folder)
        for extra in extras or EXTRAS:
            count, megabytes, complete = measured(extra, wheel=wheel, folder=folder)
            sound = sound and complete
            print(
                f"{extra or '(none)':12} {count:4} {megabytes:6.0f} MB {'' if complete else 'INCOMPLETE'}", flush=True
            )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
