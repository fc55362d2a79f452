"""A sampled mutation score of the code that must not be wrong.

Each mutation is judged by the tests that enter its function (`tests.mutants.reached`): first those of the mirrored
folder, then others. They run in a process that forks after the libraries are imported, since imports take about two
seconds of processor time. Nothing is copied, and no file changes. Operators for relations, factors and missing syncs
are functions of `operators.py`. cosmic-ray and mutmut run a command, or the whole suite, for each mutation.
"""

import argparse
import functools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.compiled import callers
from tests.mutants.operators import Mutation, mutations
from tests.mutants.reached import FOLDER, Reached, Timed, read
from tests.mutants.targets import compiled_modules, mirror, modules, source_file
from tests.mutants.trial import Outcome, run, warm_up

EQUIVALENTS = Path(__file__).with_name("equivalents.json")
SURVIVED, OWN, WIDER = "survived", "own", "wider"
OWN_SECONDS, WIDER_SECONDS = 60.0, 60.0
"""The most seconds of tests in each stage; the fastest tests come first, and at least one is chosen."""
START, COMPILING, LONGEST = 30.0, 90.0, 1800.0
"""Seconds added to the limit of a trial: for the imports, and for kernels to compile."""
PROCESSES = 2

type Run = Callable[[Sequence[str], Mutation | None, float], Outcome]


@dataclass(frozen=True)
class Verdict:
    """The judgement of a mutation: which tests found it, and the name of the test that failed, if one did."""

    key: str
    found_by: str
    test: str = ""


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
    state : Path
        A file of JSON lines. A run that was cut continues from this file. To judge survivors again, delete their lines.
    reached : Reached
        Which tests enter which function.
    run : callable
        Runs tests with a mutation within a time limit.
    """

    def __init__(self, state: Path, reached: Reached, run: Run = run) -> None:
        self.state, self.reached, self.run = state, reached, run
        self.verdicts = _read(state)

    def judge(self, mutation: Mutation) -> Verdict:
        """Return which tests found the mutation: the mirrored folder's, others, or none."""
        if mutation.key not in self.verdicts:
            self.note(self._trial(mutation))
        return self.verdicts[mutation.key]

    def note(self, verdict: Verdict) -> None:
        """Store a verdict."""
        with self.state.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")
        self.verdicts[verdict.key] = verdict

    def _trial(self, mutation: Mutation) -> Verdict:
        for stage, tests, seconds in self.stages(mutation):
            limit = 3 * seconds + START + COMPILING * (mutation.module in compiled_modules())
            found = self.run(tests, mutation, limit)
            if found.late and self.run(tests, None, limit).late:
                continue  # the machine is too slow, not the mutation
            if not found.passed:
                return Verdict(mutation.key, stage, found.failed)
        return Verdict(mutation.key, SURVIVED)

    def stages(self, mutation: Mutation) -> Iterator[tuple[str, list[str], float]]:
        """Yield the tests of the mirrored folder that enter the function, then others, with their whole duration.

        A function that no test enters is compiled, or runs at import. Then these are the tests that enter its module
        or its callers, and all tests of the folder.
        """
        functions, folder = self.reached.get(mutation.module, {}), mirror(mutation.module)
        known = functions.get(mutation.function) or self._around(mutation, folder)
        for stage, is_own, most in ((OWN, True, OWN_SECONDS), (WIDER, False, WIDER_SECONDS)):
            chosen, total = list[str](), 0.0
            for seconds, test in known:
                if test.startswith(folder) == is_own and (total + seconds <= most or not chosen):
                    chosen, total = [*chosen, test], total + seconds
            if chosen:
                yield stage, chosen, total

    def _around(self, mutation: Mutation, folder: str) -> Timed:
        entered = [(module, function) for module, functions in self.reached.items() for function in functions]
        using = callers(mutation, entered)
        first = {(seconds, test) for module, function in using for seconds, test in self.reached[module][function]}
        inside = self.reached.get(mutation.module, {}).values()
        others = {(seconds, test) for tests in inside for seconds, test in tests}
        others |= {(seconds, test) for seconds, test in self.reached[""][""] if test.startswith(folder)}
        return sorted(first) + sorted(others - first)


def summary(verdicts: Mapping[str, Verdict], equivalents: Mapping[str, str]) -> str:
    """Return the score, and one line for each survivor."""
    survivors = [key for key, verdict in verdicts.items() if verdict.found_by == SURVIVED]
    harmful = [key for key in survivors if key not in equivalents]
    killed = len(verdicts) - len(survivors)
    own = sum(verdict.found_by == OWN for verdict in verdicts.values())
    counted = killed + len(harmful)
    score = f"{killed / counted:.3f}" if counted else "none"
    share = f"{own / killed:.3f}" if killed else "none"
    counts = f"mutants={len(verdicts)} killed={killed} equivalent={len(survivors) - len(harmful)}"
    first = f"{counts} survived={len(harmful)} score={score} killed_by_own_folder={share}"
    return "\n".join([first, *(f"survived {key}" for key in harmful)])


def _read(state: Path) -> dict[str, Verdict]:
    """Return the stored verdicts. A last line without its end was cut, and is removed."""
    if not state.exists():
        return {}
    content = state.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        state.write_text(whole)
    verdicts = (Verdict(**json.loads(line)) for line in whole.splitlines())
    return {verdict.key: verdict for verdict in verdicts}


def _judge_part(part: list[Mutation], judge: Judge, end: float) -> None:
    for mutation in part:
        if mutation.key in judge.verdicts or time.monotonic() > end:
            continue
        start = time.monotonic()
        found = judge.judge(mutation)
        shown = f"{found.found_by} {time.monotonic() - start:.0f} s {mutation.key}"
        print(shown, file=sys.stderr, flush=True)


def _recheck(judge: Judge, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Run each test that found a mutation once without one; leave out verdicts of tests that fail then."""
    wrong = _failing(judge.run, sorted({verdict.test for verdict in verdicts.values() if verdict.test}))
    for test in wrong:
        print(f"without a mutation, this test fails in a trial: {test}", file=sys.stderr)
    return {key: verdict for key, verdict in verdicts.items() if verdict.test not in wrong}


def _failing(run: Run, tests: Sequence[str]) -> list[str]:
    """Return the tests that fail without a mutation, found by halving."""
    if not tests or run(tests, None, LONGEST).passed:
        return []
    if len(tests) == 1:
        return [*tests]
    half = len(tests) // 2
    return _failing(run, tests[:half]) + _failing(run, tests[half:])


def main() -> None:
    """Judge a sample in two processes, and print the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutation after this time")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    reached = read()
    warm_up()
    chosen, end = sample(options.seed, options.count), time.monotonic() + options.seconds
    states = [FOLDER / f"{options.seed}-{part}.jsonl" for part in range(PROCESSES)]
    children = []
    for part, state in enumerate(states):
        child = os.fork()
        if child == 0:
            _judge_part(chosen[part::PROCESSES], Judge(state, reached), end)
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    if failed:
        raise SystemExit("a process that judges mutations failed; its message is above")
    found = {key: verdict for state in states for key, verdict in _read(state).items()}
    names = [mutation.key for mutation in chosen if mutation.key in found]
    verdicts = _recheck(Judge(states[0], reached), {name: found[name] for name in names})
    print(summary(verdicts, json.loads(EQUIVALENTS.read_text())))


if __name__ == "__main__":
    main()
