"""A sampled mutation score of the code that must not be wrong.

Each mutation runs in a process that forks after the libraries are imported. A new process would first spend about two
seconds of processor time on imports. Nothing is copied, and no file changes. Operators for relations, factors and
missing syncs are functions of `operators.py`. Speed was not compared with that of cosmic-ray or mutmut.
"""

import argparse
import functools
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.mutants.operators import Mutation, mutations
from tests.mutants.targets import ROOT, modules, own_tests, source_file, wider_tests
from tests.mutants.trial import passes, warm_up

EQUIVALENTS = Path(__file__).with_name("equivalents.json")
SURVIVED, OWN, WIDER = "survived", "own", "wider"
FIRST_LIMIT = 1800.0

type Passes = Callable[[list[str], Mutation | None, float], bool]


def sample(seed: int, count: int) -> list[Mutation]:
    """Return a random sample of all mutations of the named modules."""
    return random.Random(seed).sample(_all_mutations(), count)


@functools.cache
def _all_mutations() -> list[Mutation]:
    return [mutation for module in modules() for mutation in mutations(module, source_file(module).read_text())]


class Judge:
    """Verdicts on mutations, each stored as soon as it is found.

    Parameters
    ----------
    state
        A file of JSON lines. A run that was cut continues from this file. To judge survivors again, delete their lines.
    passes
        Run tests with a mutation, or without one, within a time limit.
    """

    def __init__(self, state: Path, passes: Passes = passes) -> None:
        self.state, self.passes = state, passes
        self.verdicts = _read(state)
        self.limits: dict[tuple[str, ...], float] = {}

    def judge(self, mutation: Mutation) -> str:
        """Return which tests found the mutation: the mirrored folder's, others, or none."""
        if mutation.key not in self.verdicts:
            verdict = self._trial(mutation)
            with self.state.open("a") as file:
                file.write(json.dumps({"key": mutation.key, "verdict": verdict}) + "\n")
            self.verdicts[mutation.key] = verdict
        return self.verdicts[mutation.key]

    def _trial(self, mutation: Mutation) -> str:
        stages = ((OWN, own_tests(mutation.module)), (WIDER, wider_tests(mutation.module)))
        for name, tests in stages:
            if tests and not self.passes(tests, mutation, self._limit(tests)):
                return name
        return SURVIVED

    def _limit(self, tests: list[str]) -> float:
        """Return the time limit of tests: five times their time without a mutation, and 20 seconds."""
        stage = tuple(tests)
        if stage not in self.limits:
            start = time.monotonic()
            if not self.passes(tests, None, FIRST_LIMIT):
                raise SystemExit(f"without a mutation, a test fails in {', '.join(tests)}: repair it first.")
            self.limits[stage] = 5 * (time.monotonic() - start) + 20
        return self.limits[stage]


def summary(verdicts: dict[str, str], equivalents: dict[str, str]) -> str:
    """Return the score, and one line for each survivor."""
    survivors = [key for key, verdict in verdicts.items() if verdict == SURVIVED]
    harmful = [key for key in survivors if key not in equivalents]
    killed = len(verdicts) - len(survivors)
    own = sum(verdict == OWN for verdict in verdicts.values())
    counted = killed + len(harmful)
    score = f"{killed / counted:.3f}" if counted else "none"
    share = f"{own / killed:.3f}" if killed else "none"
    counts = f"mutants={len(verdicts)} killed={killed} equivalent={len(survivors) - len(harmful)}"
    first = f"{counts} survived={len(harmful)} score={score} killed_by_own_folder={share}"
    return "\n".join([first, *(f"survived {key}" for key in harmful)])


def _read(state: Path) -> dict[str, str]:
    """Return the stored verdicts. A last line without its end was cut, and is removed."""
    if not state.exists():
        return {}
    content = state.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        state.write_text(whole)
    entries = [json.loads(line) for line in whole.splitlines()]
    return {entry["key"]: entry["verdict"] for entry in entries}


def main() -> None:
    """Judge a sample, and print the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutation after this time")
    options = parser.parse_args()
    folder = ROOT / ".mutants"
    folder.mkdir(exist_ok=True)
    warm_up()
    judge, verdicts = Judge(folder / f"{options.seed}.jsonl"), dict[str, str]()
    end = time.monotonic() + options.seconds
    for mutation in sample(options.seed, options.count):
        if mutation.key not in judge.verdicts and time.monotonic() > end:
            continue
        start = time.monotonic()
        verdicts[mutation.key] = judge.judge(mutation)
        print(f"{verdicts[mutation.key]} {time.monotonic() - start:.0f} s {mutation.key}", file=sys.stderr, flush=True)
    print(summary(verdicts, json.loads(EQUIVALENTS.read_text())))


if __name__ == "__main__":
    main()
