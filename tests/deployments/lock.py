"""Program that writes the lock files of the image and of the consumer, as parts of ``requirements.lock``."""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deployments.manifests import FOLDER

WHOLE, IMAGE = FOLDER.parent / "requirements.lock", FOLDER / "requirements.lock"
CONSUMER = FOLDER.parent / "requirements-consumer.lock"
INSTALLED = {"dpca-pipeline": ("pipeline", "plots", "postgres", "units"), "hatchling": ()}
"""Distributions that the image installs, with their extras; the second builds the first."""
CONSUMED = {"dpca-pipeline": ("s3",)}
"""Distribution with extras for a consumer: use an artifact from a folder, https or s3, and run the command."""
CONSUMERS_PYTHONS = ("3.12", "3.13", "3.14")


def entries(path: Path) -> dict[str, str]:
    """Return the entries of a lock file, with version and hashes, by distribution name."""
    parts = [part for part in re.split(r"(?m)^(?=[A-Za-z0-9])", path.read_text()) if part]
    return {canonicalize_name(re.split(r"[^\w.-]", part, maxsplit=1)[0]): part for part in parts}


def needed(installed: Mapping[str, Sequence[str]], *, pythons: Sequence[str] = ()) -> set[str]:
    """Return the given distributions and all that they require, by the metadata of this environment.

    Parameters
    ----------
    installed : mapping of str to sequence of str
        Names of distributions, with the extras of each.
    pythons : sequence of str
        Python versions for which requirements are evaluated; by default the running one.
    """
    places: list[dict[str, str]] = [
        {"python_version": python, "python_full_version": f"{python}.0"} for python in pythons
    ]
    seen: set[tuple[str, str]] = set()
    waiting = [(name, chosen) for name, extras in installed.items() for chosen in ("", *extras)]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        for text in requires(item[0]) or []:
            need = Requirement(text)
            if need.marker is None or any(
                need.marker.evaluate({**place, "extra": item[1]}) for place in places or [{}]
            ):
                waiting += [(canonicalize_name(need.name), name) for name in ("", *need.extras)]
    return {name for name, _ in seen} - {"dpca-pipeline"}


def image_lock() -> str:
    """Return the lock entries of all distributions that a run of the pipeline requires."""
    return _part(needed(INSTALLED))


def consumer_lock() -> str:
    """Return the lock entries of all distributions that a consumer requires, on any supported Python."""
    return _part(needed(CONSUMED, pythons=CONSUMERS_PYTHONS))


def _part(wanted: set[str]) -> str:
    return "".join(entry for name, entry in entries(WHOLE).items() if name in wanted)


if __name__ == "__main__":
    IMAGE.write_text(image_lock())
    CONSUMER.write_text(consumer_lock())
