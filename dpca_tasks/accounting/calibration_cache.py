"""Sampled calibrations on disk, by their arguments: a search of seconds is done once for all plans of a request.

The cache is no part of the guarantee: what is read from it is checked again, by one evaluation of the privacy loss
distribution, and a file that fails the check is computed again.
"""

import contextlib
import hashlib
import json
import os
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from dpca_tasks.accounting.subsampled import sampled_gaussian_is_private, sampled_gaussian_noise_multiplier

FOLDER_VARIABLE = "DPCA_CACHE_FOLDER"


@lru_cache(maxsize=256)
def cached_sampled_multiplier(
    *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction = Fraction(0)
) -> float:
    """Return what `sampled_gaussian_noise_multiplier` returns, searched for at most once.

    Guarantees
    ----------
    The multiplier's epsilon was computed in this process and is at most `epsilon`. A cache that cannot be read or
    written is done without.
    """
    terms = {"epsilon": epsilon, "delta": delta, "rate": rate, "steps": steps}
    path = _path([*terms.values(), str(besides)])
    try:
        known = float(json.loads(path.read_bytes())["noise_multiplier"])
        if known > 0 and sampled_gaussian_is_private(known, besides=besides, **terms):  # type: ignore[arg-type]
            return known
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = sampled_gaussian_noise_multiplier(besides=besides, **terms)  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({**terms, "besides": str(besides), "noise_multiplier": found}))
        partial.replace(path)
    return found


def _path(arguments: list[object]) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    cache = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpca"
    text = json.dumps([version("dp-accounting"), *map(repr, arguments)])
    return cache / "calibrations" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
