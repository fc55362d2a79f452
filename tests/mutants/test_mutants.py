"""Tests of the mutation score: every operator, stored verdicts, and the judgement of a trial."""

import ast
import json

import pytest

from tests.mutants.__main__ import EQUIVALENTS, Judge, Verdict, _recheck, sample, summary
from tests.mutants.operators import mutate, mutations
from tests.mutants.targets import ROOT, mirror, modules, source_file
from tests.mutants.trial import Outcome

SOURCE = '''
"""Text."""
def scaled(x: "1 + 2", n, file):
    """Text."""
    if n < 2 and x:
        raise ValueError(f"{n + 7}")
    sync(file)
    file.close()
    relation = "add_remove"
    return max(abs(x), n) * -call(x, n) - 1
'''
EXPECTED = {
    ("comparison", "n < 2 -> n <= 2"),
    ("comparison", "n < 2 and x -> not (n < 2 and x)"),
    ("dropped term", "n < 2 and x -> x"),
    ("dropped term", "n < 2 and x -> n < 2"),
    ("off by one", "2 -> 3"),
    ("off by one", "1 -> 2"),
    ("swallowed exception", "raise ValueError(f'{n + 7}') -> pass"),
    ("missing sync", "sync(file) -> pass"),
    ("dropped call", "file.close() -> pass"),
    ("dropped call", "max(abs(x), n) -> abs(x)"),
    ("dropped call", "abs(x) -> x"),
    ("wrong relation", "'add_remove' -> 'replace_one'"),
    ("swapped arguments", "call(x, n) -> call(n, x)"),
    ("early return", "return max(abs(x), n) * -call(x, n) - 1 -> return None"),
    ("sign", "max(abs(x), n) * -call(x, n) - 1 -> max(abs(x), n) * -call(x, n) + 1"),
    ("dropped term", "max(abs(x), n) * -call(x, n) - 1 -> max(abs(x), n) * -call(x, n)"),
    ("sign", "-call(x, n) -> call(x, n)"),
    ("factor 2", "max(abs(x), n) * -call(x, n) -> 2 * (max(abs(x), n) * -call(x, n))"),
    ("factor sqrt 2", "max(abs(x), n) * -call(x, n) -> 1.4142135623730951 * (max(abs(x), n) * -call(x, n))"),
}


NEGATED = {"a == b": "a != b", "a is not None": "a is None", "a in b": "a not in b"}


def test_operators_change_code_and_neither_annotations_nor_texts():
    found = mutations("m", SOURCE)
    assert {(one.operator, one.text) for one in found} == EXPECTED
    assert len(found) == len(EXPECTED)


def test_each_mutation_changes_the_compiled_code():
    original = compile(SOURCE, "m", "exec").co_consts[1].co_code
    for mutation in mutations("m", SOURCE):
        compiled = compile(mutate(mutation, SOURCE), "m", "exec").co_consts[1]
        original_constants = compile(SOURCE, "m", "exec").co_consts[1].co_consts
        assert (compiled.co_code, compiled.co_consts) != (original, original_constants), mutation.key


@pytest.mark.parametrize("test", NEGATED)
def test_a_condition_is_negated_once(test):
    (found,) = mutations("m", f"if {test}:\n    x = y")
    assert ast.dump(mutate(found, f"if {test}:\n    x = y")) == ast.dump(ast.parse(f"if {NEGATED[test]}:\n    x = y"))


def test_a_key_outlives_a_shift_of_lines():
    shifted = f"import os\n\n{SOURCE.replace('n < 2', 'n  <  2')}"
    assert [one.key for one in mutations("m", shifted)] == [one.key for one in mutations("m", SOURCE)]


def test_a_mutation_of_changed_text_is_refused():
    with pytest.raises(KeyError):
        mutate(mutations("m", SOURCE)[0], "x = 1")


def test_every_module_has_a_mirrored_folder_of_tests():
    assert [module for module in modules() if not (ROOT / mirror(module)).is_dir()] == []


def test_a_sample_depends_on_its_seed_alone():
    assert sample(1, 20) == sample(1, 20) != sample(2, 20)


def test_every_equivalent_still_names_a_mutation_and_has_a_reason():
    stored = json.loads(EQUIVALENTS.read_text())
    named = {key.partition(":")[0] for key in stored}
    known = {one.key for module in named for one in mutations(module, source_file(module).read_text())}
    assert stored.keys() <= known
    assert all(reason.strip() for reason in stored.values())


def test_a_cut_run_repeats_no_verdict_and_ignores_half_a_line(tmp_path):
    state, trials = tmp_path / "state", []

    def run(tests, mutation, seconds):
        trials.append(mutation)
        return Outcome(passed=False, failed=tests[0])

    first, second = sample(3, 2)
    reached = {
        each.module: {each.function: [(0.1, f"{mirror(each.module)}test_x.py::test")]} for each in (first, second)
    }
    assert Judge(state, reached, run).judge(first).found_by == "own"
    with state.open("a") as file:
        file.write('{"key": "half')
    trials.clear()
    resumed = Judge(state, reached, run)
    assert resumed.judge(first).found_by == "own"
    assert not trials
    resumed.judge(second)
    assert Judge(state, reached, run).verdicts.keys() == {first.key, second.key}


def test_the_fastest_tests_that_enter_the_function_come_first_and_those_of_the_folder_before_others(tmp_path):
    (mutation,) = sample(3, 1)
    own, other = f"{mirror(mutation.module)}test_x.py::", "tests/other/test_y.py::"
    tests = [(0.1, own + "a"), (0.2, other + "b"), (0.3, own + "c"), (50.0, other + "d"), (59.9, own + "e")]
    stages = list(Judge(tmp_path / "state", {mutation.module: {mutation.function: tests}}).stages(mutation))
    assert [(stage, chosen) for stage, chosen, _ in stages] == [
        ("own", [own + "a", own + "c"]),
        ("wider", [other + "b", other + "d"]),
    ]
    assert stages[0][2] == pytest.approx(0.4)


def test_a_function_that_no_test_enters_is_judged_by_the_tests_of_its_module_and_of_its_folder(tmp_path):
    (mutation,) = sample(3, 1)
    a, b = (f"{mirror(mutation.module)}test_x.py::{name}" for name in "ab")
    every = [(0.1, a), (0.2, b), (0.3, "tests/other")]
    reached = {mutation.module: {"another": [(0.1, a)]}, "": {"": every}}
    judge = Judge(tmp_path / "state", reached)
    assert [chosen for _, chosen, _ in judge.stages(mutation)] == [[a, b]]


def test_a_late_trial_finds_a_mutation_only_if_its_tests_are_in_time_without_the_mutation(tmp_path):
    (mutation,) = sample(3, 1)
    reached = {mutation.module: {mutation.function: [(0.1, f"{mirror(mutation.module)}test_x.py::a")]}}
    late = Outcome(passed=False, late=True)
    for without, found_by in ((Outcome(passed=True), "own"), (late, "survived")):
        outcomes = {True: late, False: without}
        judge = Judge(tmp_path / found_by, reached, lambda tests, planted, seconds, o=outcomes: o[planted is not None])  # type: ignore[misc]
        assert judge.judge(mutation).found_by == found_by


def test_verdicts_of_tests_that_fail_without_a_mutation_are_left_out(tmp_path):
    found = {each: Verdict(each, "own", test=each) for each in "abcde"}
    judge = Judge(tmp_path / "state", {}, lambda tests, planted, seconds: Outcome(passed="c" not in tests))
    assert _recheck(judge, found).keys() == {*"abde"}


def test_the_score_leaves_out_equivalents_and_names_harmful_survivors():
    found_by = {"a": "own", "b": "own", "c": "wider", "d": "survived", "e": "survived"}
    verdicts = {key: Verdict(key, stage) for key, stage in found_by.items()}
    assert summary(verdicts, {"d": "the order of a sum does not matter"}).splitlines() == [
        "mutants=5 killed=3 equivalent=1 survived=1 score=0.750 killed_by_own_folder=0.667",
        "survived e",
    ]
