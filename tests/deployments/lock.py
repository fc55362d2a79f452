"""A program: write the image's lock, which is the part of ``requirements.lock`` that a run needs, hashes included."""

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deployments.manifests import FOLDER

WHOLE, IMAGE = FOLDER.parent / "requirements.lock", FOLDER / "requirements.lock"
INSTALLED = {"dpca-pipeline": "postgres", "hatchling": ""}
"""What the image installs, with an extra; the second builds the first."""


def entries(path: Path) -> dict[str, str]:
    """Return a lock's entries by distribution."""
    parts = [part for part in re.split(r"(?m)^(?=[A-Za-z0-9])", path.read_text()) if part]
    return {canonicalize_name(re.split(r"[^\w.-]", part, maxsplit=1)[0]): part for part in parts}


def needed() -> set[str]:
    """Return the distributions that the image needs, as this environment has them."""
    seen: set[tuple[str, str]] = set()
    waiting = [(name, chosen) for name, extra in INSTALLED.items() for chosen in ("", extra)]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        for text in requires(item[0]) or []:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": item[1]}):
                waiting += [(canonicalize_name(need.name), name) for name in ("", *need.extras)]
    return {name for name, _ in seen} - {"dpca-pipeline"}


if __name__ == "__main__":
    whole, wanted = entries(WHOLE), needed()
    IMAGE.write_text("".join(entry for name, entry in whole.items() if name in wanted))
