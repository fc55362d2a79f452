"""TLA+ models: they agree with the program's crash points and functions, and with the list of planted faults."""

import re
import shutil
from pathlib import Path

import pytest

from dpca.backends.atomic_files import POINTS, STREAM_POINTS
from tests.model import check
from tests.model.check import MODELS, MODULES, Constants, Module, configuration, read

ROOT = Path(__file__).parents[2]
TEXTS = {module.name: (MODELS / f"{module.name}.tla").read_text("utf-8") for module in MODULES}
NAMED = re.compile(
    r"((?:storage|flows|dpca_tasks)/[\w/]+\.py) (?:(?!storage|flows|dpca_tasks)([A-Z]\w+\.)?([a-z_]\w+))"
)


def by_name(module: Module) -> str:
    return module.name


def test_every_crash_point_of_a_release_and_of_a_stream_is_named_in_a_model() -> None:
    assert [point for point in (*POINTS, *STREAM_POINTS) if not any(point in text for text in TEXTS.values())] == []


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_every_function_that_a_model_abstracts_exists(module: Module) -> None:
    named = NAMED.findall(re.sub(r"\s+", " ", TEXTS[module.name]))
    assert len(named) > 4
    for path, kind, function in named:
        source = (ROOT / path).read_text("utf-8")
        assert f"def {function}(" in source or f"def {function}[" in source, (path, function)
        assert not kind or f"class {kind.removesuffix('.')}" in source, (path, kind)


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_every_fault_of_a_model_is_planted_and_no_other(module: Module) -> None:
    (listed,) = re.findall(r"^Faults == \{(.*?)\}", TEXTS[module.name], re.M | re.S)
    used = set(re.findall(r'Fault (?:=|#) "(\w+)"', TEXTS[module.name]))
    used |= {name for several in re.findall(r"Fault \\in \{(.*?)\}", TEXTS[module.name]) for name in _words(several)}
    assert set(_words(listed)) == set(module.planted) == used


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_all_properties_of_a_model_are_defined_and_checked(module: Module) -> None:
    _, _, last = TEXTS[module.name].partition("-" * 77)
    defined = set(re.findall(r"^(\w+)(?:\(\w+\))? ==", last, re.M)) - {"Truth"}
    assert defined == {*module.holds, *module.follows, *module.ends[0]}


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_every_constant_of_a_model_has_a_value(module: Module) -> None:
    (text,) = re.findall(r"^CONSTANTS\n(.*?)\n\n", TEXTS[module.name], re.M | re.S)
    declared = set(re.findall(r"[A-Z]\w+(?=,|\s*(?:\\\*|$))", re.sub(r"\\\*.*", "", text), re.M)) - {"Fault"}
    given: list[Constants] = [*module.exhaustive, module.simulated, *([module.ends[1]] if module.ends[0] else [])]
    assert [set(constants) for constants in given] == [declared] * len(given)


def test_a_fault_of_two_requests_at_once_is_found_within_few_states() -> None:
    if shutil.which("java") is None:
        pytest.skip("this machine has no java, which `make model` asks for in one line")
    releases = MODULES[0]
    requested = configuration(releases.exhaustive[0], fault="same_request", holds=("EqualRequestsEqualArtifacts",))
    verdict = check.run("releases", requested)
    assert verdict.violated == "EqualRequestsEqualArtifacts"
    assert 0 < verdict.distinct < 20_000
    assert "SearchUnlocked" in verdict.trace


def test_a_missing_java_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match=r"^make model needs Java 11 or newer, .* try again\.$"):
        check.run("releases", "")


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--fault", "typo"], ["--only", "sites", "--fault", "clock"]):
        with pytest.raises(SystemExit, match="2"):
            check.main(words)
        assert f"--fault {words[-1]} is planted in none of these modules; choose one of" in capsys.readouterr().err


def test_output_without_a_verdict_is_an_error() -> None:
    for message in ("", "Error: Parsing or semantic analysis failed.\nFinished in 01s"):
        with pytest.raises(SystemExit, match="could not check releases"):
            read(message, module="releases")


def _words(text: str) -> list[str]:
    return re.findall(r'"(\w+)"', text)
