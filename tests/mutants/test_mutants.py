"""Tests of the mutation score: every operator, stored verdicts, and the judgement of a trial."""

import json

import pytest

from tests.mutants.__main__ import EQUIVALENTS, Judge, sample, summary
from tests.mutants.operators import mutate, mutations
from tests.mutants.targets import modules, own_tests, source_file

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


def test_a_key_outlives_a_shift_of_lines():
    shifted = f"import os\n\n{SOURCE.replace('n < 2', 'n  <  2')}"
    assert [one.key for one in mutations("m", shifted)] == [one.key for one in mutations("m", SOURCE)]


def test_a_mutation_of_changed_text_is_refused():
    with pytest.raises(KeyError):
        mutate(mutations("m", SOURCE)[0], "x = 1")


def test_every_module_has_tests_in_its_mirrored_folder():
    assert [module for module in modules() if not own_tests(module)] == []


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

    def passes(tests, mutation, seconds):
        trials.append(mutation)
        return mutation is None

    first, second = sample(3, 2)
    assert Judge(state, passes).judge(first) == "own"
    with state.open("a") as file:
        file.write('{"key": "half')
    trials.clear()
    resumed = Judge(state, passes)
    assert resumed.judge(first) == "own"
    assert not trials
    resumed.judge(second)
    assert Judge(state, passes).verdicts == {first.key: "own", second.key: "own"}


def test_tests_that_fail_without_a_mutation_end_the_run(tmp_path):
    with pytest.raises(SystemExit, match="without a mutation"):
        Judge(tmp_path / "state", lambda *_: False).judge(sample(3, 1)[0])


def test_the_score_leaves_out_equivalents_and_names_harmful_survivors():
    verdicts = {"a": "own", "b": "own", "c": "wider", "d": "survived", "e": "survived"}
    assert summary(verdicts, {"d": "the order of a sum does not matter"}).splitlines() == [
        "mutants=5 killed=3 equivalent=1 survived=1 score=0.750 killed_by_own_folder=0.667",
        "survived e",
    ]
