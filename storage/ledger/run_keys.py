"""The run keys of a ledger that serves others: each population has its own.

Run keys are one namespace of a ledger. So that nobody learns or takes those of other people's releases from outside, a
run key that somebody chose is stored there with the population that pays. One that names its population and a digest,
as requests without a choice do, is stored as it is, and so is found wherever the same request is made.
"""

import hashlib
import re

_DIGEST = re.compile("[0-9a-f]{64}(/.*)?")


def key_apart(population: str, run_key: str) -> str:
    """Return what a run key of a population is stored as when it is reserved from outside."""
    own = f"{population}/"
    if run_key.startswith(own) and _DIGEST.fullmatch(run_key.removeprefix(own)):
        return run_key
    return f"apart {hashlib.sha256(population.encode()).hexdigest()[:16]}/{run_key}"
