"""Contract of the ``dpca`` command: exit codes, one-line errors, JSON alone on stdout, refusals without effects.

Help texts have options in groups, lines complete at 80 columns, and a reference to the glossary. The public functions
and classes of `dpca` can be called as documented, and the examples of their docstrings work.
"""

import doctest
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import dpca as public
from docs.command_reference import reference
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BudgetExhausted, Conflict, Corrupt, Invalid, NotFound
from dpca.registry.reader import Registry
from dpca_tasks.errors import InvalidInput
from flows.calls import fit_subspace, open_budget
from flows.cli import build_app, main
from flows.commands.app import COMMAND_GROUPS, GROUPED_FROM, OPTION_GROUPS, TERMS
from flows.estimators import PrivatePCA
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command, all_loaded_by, facts_of, isolate, loaded_by

COMMANDS = {
    "dataset": ("ingest", "list", "show", "verify", "remove"),
    "budget": ("open", "show", "history", "abandon", "close"),
    "subspace": ("fit", "evaluate"),
    "transform": ("INPUT", "--output"),
    "recommend": ("USER_FILE", "--count"),
    "registry": ("list", "show", "promote", "verify", "export"),
}
OPTIONS = {
    ("dataset", "ingest"): "--name --population --features --records-at-most --block-nnz --dtype --direct --json",
    ("budget", "open"): "--epsilon --delta --relation --filter --failure-delta --allow-large-delta --json",
    ("budget", "show"): "--json",
    ("subspace", "fit"): (
        "--components --epsilon --delta --clip-norm --publish --mechanism --settings --run-key --workers "
        "--allow-large-delta --direct --dry-run --yes --json"
    ),
    ("transform",): "--output --json",
    ("registry", "export"): "--format --output --json",
    ("demo",): "--home --json",
}


def test_every_command_has_a_help_text(dpca: Command) -> None:
    top = dpca("--help")
    assert top.status == 0
    for noun, verbs in COMMANDS.items():
        assert noun in top.out
        shown = dpca(noun, "--help")
        assert shown.status == 0
        assert all(verb in shown.out for verb in verbs)


@pytest.mark.parametrize("words", sorted(OPTIONS), ids=" ".join)
def test_every_documented_option_exists(dpca: Command, words: tuple[str, ...]) -> None:
    shown = dpca(*words, "--help")
    assert shown.status == 0
    assert set(OPTIONS[words].split()) <= set(shown.out.replace(",", " ").split())


def test_help_needs_neither_prefect_nor_dask_nor_arrays_nor_a_home(tmp_path: Path) -> None:
    heavy = ("prefect", "dask", "sqlalchemy", "zarr", "numpy", "scipy", "numba", "pyarrow")
    script = (
        "import sys; from flows.cli import main; status = main(['subspace', 'fit', '--help']); "
        f"sys.exit(status or any(name in sys.modules for name in {heavy}))"
    )
    environment = {**os.environ, "DPCA_HOME": str(tmp_path / "absent")}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nothing",),
        ("--nothing",),
        ("subspace",),
        ("subspace", "fit"),
        ("subspace", "fit", "people"),
        ("dataset", "ingest"),
        ("budget", "open", "people", "--epsilon", "much", "--delta", "1e-6"),
        (*FIT, "--components", "0"),
        (*FIT, "--components", "-1"),
        (*FIT, "--components", "2.5"),
        (*FIT, "--epsilon", "one"),
        (*FIT, "--workers", "0"),
        (*FIT, "--settings", "lonely"),
        (*FIT, "--settings", "a=1", "--settings", "a=2"),
        (*FIT, "--nothing"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(home: Path, dpca: Command, words: tuple[str, ...]) -> None:
    named = [word for word in words[:2] if word in ("subspace", "fit", "dataset", "ingest", "budget", "open")]
    assert dpca(*words).complaint(2).endswith(f"; see `{' '.join(['dpca', *named])} --help`.")
    assert not home.exists()


OBSTACLES = {"file": "file", "below-file": "file/home", "proc": "/proc/dpca-home"}
WRITES = (
    ("dataset", "ingest", "rows.svm", "--name", "d", "--features", "2", "--direct", "--json"),
    ("budget", "open", "people", "--epsilon", "1", "--delta", "1e-6", "--json"),
)
READS = (
    ("dataset", "list", "--json"),
    ("budget", "show", "people", "--json"),
    (*FIT, "--direct", "--yes", "--json"),  # this fit reads the home before it charges
    (*FIT, "--dry-run", "--json"),
)


@pytest.mark.parametrize(
    ("words", "place"), [*itertools.product(WRITES, OBSTACLES), *itertools.product(READS, ("file", "below-file"))]
)
def test_a_home_that_cannot_be_written_is_named(
    dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("in the way")
    chosen = tmp_path / OBSTACLES[place]
    monkeypatch.setenv("DPCA_HOME", str(chosen))
    assert dpca(*words).complaint(1).startswith(f"dpca: DPCA_HOME={chosen} is not a writable folder")
    assert (tmp_path / "file").read_text() == "in the way"


def test_reading_commands_report_an_empty_home_where_none_can_exist(
    dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_HOME", OBSTACLES["proc"])
    assert json.loads(dpca("dataset", "list", "--json").out) == []
    assert "people" in dpca("budget", "show", "people").complaint(1)
    assert "people" in dpca(*FIT, "--direct", "--yes").complaint(1)


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("DPCA_WORKERS", "0", "DPCA_WORKERS='0' is refused"),
        ("DPCA_WORKERS", "many", "DPCA_WORKERS='many' is refused"),
        ("DPCA_ALLOW_PLAINTEXT", "perhaps", "DPCA_ALLOW_PLAINTEXT='perhaps' is refused"),
        ("DPCA_CLUSTER", "somewhere", "DPCA_CLUSTER='somewhere' must be"),
        ("DPCA_CLUSTER", "tcp://192.0.2.1:8786", "would send rows unencrypted"),
        ("DPCA_DATABASE_URL", "nonsense", "DPCA_DATABASE_URL is not usable"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_charged(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    before = facts_of(ready)
    monkeypatch.setenv(variable, value)
    assert complaint in dpca(*FIT, "--direct", "--yes", "--json").complaint(1)
    assert facts_of(ready) == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--epsilon", "0", "--delta", "1e-6"), "epsilon=0.0"),
        (("--epsilon", "-1", "--delta", "1e-6"), "epsilon=-1.0"),
        (("--epsilon", "nan", "--delta", "1e-6"), "epsilon=nan"),
        (("--epsilon", "inf", "--delta", "1e-6"), "epsilon=inf"),
        (("--epsilon", "1", "--delta", "0"), "delta=0.0"),
        (("--epsilon", "1", "--delta", "1"), "delta=1.0"),
        (("--epsilon", "1", "--delta", "nan"), "delta=nan"),
        (("--epsilon", "1", "--delta", "1e-6", "--relation", "sideways"), "relation='sideways'"),
        (("--epsilon", "1", "--delta", "1e-6", "--filter", "coffee"), "filter='coffee'"),
    ],
)
def test_invalid_terms_open_no_budget(ready: Path, dpca: Command, words: tuple[str, ...], complaint: str) -> None:
    before = facts_of(ready)
    assert complaint in dpca("budget", "open", "others", *words, "--json").complaint(1)
    assert facts_of(ready) == before


def test_a_budget_is_opened_once_and_its_terms_never_change(ready: Path, dpca: Command) -> None:
    before = facts_of(ready)
    terms = ("--epsilon", "2", "--delta", "1e-6")
    again = json.loads(dpca("budget", "open", "people", *terms, "--json").out)
    assert {"epsilon": 2.0, "delta": 1e-6, "relation": "add_remove", "filter": "gdp"}.items() <= again.items()
    for other in (
        ("--epsilon", "3", "--delta", "1e-6"),
        ("--epsilon", "2", "--delta", "1e-7"),
        (*terms, "--relation", "zero_out"),
        (*terms, "--filter", "renyi"),
    ):
        assert "its terms never change" in dpca("budget", "open", "people", *other, "--json").complaint(1)
    assert facts_of(ready) == before


def test_budget_show_has_the_documented_fields(released: Path, dpca: Command) -> None:
    shown = json.loads(dpca("budget", "show", "people", "--json").out)
    assert {"epsilon", "delta", "relation", "filter", "spent", "remaining", "releases"} <= set(shown)
    assert (shown["spent"], shown["epsilon"]) == (pytest.approx(1.0, rel=1e-6), 2.0)
    assert 0 < shown["remaining"] < 2
    (row,) = shown["releases"]
    assert {"event", "artifact", "state", "time"} <= set(row)
    assert (row["artifact"], row["state"], row["event"]["name"]) == ("sub@1", "committed", "composed")
    human = dpca("budget", "show", "people")
    assert human.status == 0
    for text in ("spent", "remaining", "sub@1", "committed", "gaussian"):
        assert text in human.out


def test_a_population_without_budget_is_named_with_the_command_to_open_one(ready: Path, dpca: Command) -> None:
    for verb in ("show", "history"):
        complaint = dpca("budget", verb, "others", "--json").complaint(1)
        assert "population 'others' has no budget; open one with `dpca budget open others" in complaint


def test_registry_list_and_show_have_the_documented_fields(released: Path, dpca: Command) -> None:
    (row,) = json.loads(dpca("registry", "list", "--json").out)
    assert row["artifact"] == "sub@1"
    shown = json.loads(dpca("registry", "show", "sub", "--json").out)
    promised = {"artifact", "digest", "release", "mechanism", "relation", "epsilon", "delta", "noise_multiplier"}
    assert promised | {"lineage"} <= set(shown)
    assert (shown["artifact"], shown["digest"]) == ("sub@1", row["digest"])
    assert {"release", "mechanism", "code_version", "parent"} == set(shown["lineage"])
    assert (len(shown["eigenvalues"]), shown["n_features"]) == (2, 6)
    assert "snapshot" not in json.dumps(shown)


def test_promote_moves_an_alias_that_every_reader_follows(released: Path, dpca: Command) -> None:
    promoted = json.loads(dpca("registry", "promote", "sub@1", "champion", "--json").out)
    assert (promoted["artifact"], promoted["alias"]) == ("sub@1", "champion")
    for name in ("sub", "sub@1", "sub@champion", "sub@latest", f"sub@sha256:{promoted['digest']}"):
        verified = json.loads(dpca("registry", "verify", name, "--json").out)
        assert verified == {"artifact": "sub@1", "digest": promoted["digest"], "verified": True}
    assert json.loads(dpca("registry", "list", "--json").out)[0]["aliases"] == ["champion"]


@pytest.mark.parametrize("verb", ["show", "verify"])
@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("nothing", "'nothing' does not exist"),
        ("sub@9", "sub has no version 9; only version 1 exists"),
        ("sub@champion", "sub has no alias 'champion'"),
        (f"sub@sha256:{'0' * 64}", "sub has no version of digest"),
        ("sub@", "reference 'sub@' is not name, name@3"),
        ("Sub", "reference 'Sub' is not name, name@3"),
        ("../sub", "reference '../sub' is not name, name@3"),
    ],
)
def test_unknown_references_are_refused(
    released: Path, dpca: Command, verb: str, reference: str, complaint: str
) -> None:
    assert complaint in dpca("registry", verb, reference, "--json").complaint(1)


@pytest.mark.parametrize(
    ("reference", "alias", "complaint"),
    [
        ("sub@2", "champion", "has no version 2"),
        ("sub@1", "latest", "'latest' is reserved"),
        ("sub@1", "Two Words", "alias 'Two Words' is not allowed"),
        ("other@1", "champion", "'other' does not exist"),
    ],
)
def test_a_bad_promotion_changes_nothing(
    released: Path, dpca: Command, reference: str, alias: str, complaint: str
) -> None:
    before = facts_of(released)
    assert complaint in dpca("registry", "promote", reference, alias, "--json").complaint(1)
    assert facts_of(released) == before


def test_export_writes_one_portable_file(released: Path, dpca: Command, tmp_path: Path) -> None:
    output = tmp_path / "sub.npz"
    report = json.loads(dpca("registry", "export", "sub", "--format", "npz", "--output", output, "--json").out)
    assert report == {"artifact": "sub@1", "output": str(output)}
    subspace = Registry.open().load("sub")
    with np.load(output) as archive:
        np.testing.assert_array_equal(archive["components"], subspace.components)
        np.testing.assert_array_equal(archive["eigenvalues"], subspace.eigenvalues)


def test_a_bad_export_writes_nothing(released: Path, dpca: Command, tmp_path: Path) -> None:
    for words, complaint in (
        (("--format", "csv", "--output", tmp_path / "sub.npz"), "format 'csv' is unknown"),
        (("--output", tmp_path / "no" / "sub.npz"), "must be a file in an existing folder"),
        (("--output", tmp_path), "must be a file in an existing folder"),
        (("--output", "/proc/sub.npz"), "cannot be written"),
    ):
        assert complaint in dpca("registry", "export", "sub", *words, "--json").complaint(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_one_flipped_byte_of_any_file_fails_every_reader(released: Path, dpca: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npy"
    np.save(rows, np.ones((1, 6)))
    files = [path for path in released.glob("registry/artifacts/**/*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        content = path.read_bytes()
        for at in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            for words in (
                ("registry", "verify", "sub", "--json"),
                ("registry", "show", "sub", "--json"),
                ("registry", "promote", "sub@1", "champion", "--json"),
                ("registry", "export", "sub", "--output", tmp_path / "out.npz", "--json"),
                ("transform", "sub", rows, "--output", tmp_path / "out.npy", "--json"),
            ):
                dpca(*words).complaint(1)
            with pytest.raises(Corrupt):
                Registry.open().load("sub")
        path.write_bytes(content)
    assert dpca("registry", "verify", "sub").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "rows.npy"]


def test_an_unexpected_error_is_one_line_that_quotes_nothing(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("row 7 holds 0.7390851332")

    monkeypatch.setattr("storage.datasets.catalog.Catalog.current", fail)
    ending = dpca("dataset", "show", "people", "--json")
    assert (ending.status, ending.out) == (1, "")
    assert ending.err.startswith("dpca: unexpected RuntimeError at test_cli_contract.py:")
    assert ending.err.count("\n") == 1
    assert "0.739" not in ending.err
    monkeypatch.setenv("DPCA_DEBUG", "1")
    with pytest.raises(RuntimeError, match=r"0\.739"):
        dpca("dataset", "show", "people", "--json")


def test_an_interrupt_is_one_line(ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("storage.datasets.catalog.Catalog.current", interrupt)
    assert "the same request resumes" in dpca("dataset", "show", "people", "--json").complaint(1)


_SERVICES = "prefect distributed dask matplotlib sklearn scipy.stats scipy.signal scipy.integrate"
_OF_ROWS = "zarr numcodecs pyarrow duckdb"
_STREAM = (
    *("stream", "open", "people", "--population", "people", "--components", "2", "--ticks", "5"),
    *("--epsilon", "1", "--delta", "1e-6", "--clip-norm", "1.5", "--publish", "nightly"),
)


@pytest.mark.parametrize(
    ("words", "heavy"), [((*FIT, "--direct"), f"{_SERVICES} {_OF_ROWS}"), (_STREAM, _SERVICES)], ids=["fit", "stream"]
)
@pytest.mark.usefixtures("ready")
def test_a_dry_run_loads_no_orchestrator_no_cluster_no_rows_and_no_charts(words: tuple[str, ...], heavy: str) -> None:
    shown, loaded = loaded_by(*words, "--dry-run", heavy=heavy.split())
    assert loaded == []
    assert "noise_multiplier" in shown


_COMMAND = (
    "annotated_doc annotated_types pydantic pydantic_core pygments rich shellingham typer typing_extensions "
    "typing_inspection"
)
_LEDGER = f"{_COMMAND} cryptography greenlet numpy sqlalchemy"
_SNAPSHOTS = "blake3 google_crc32c"
_SUMS = "cffi charset_normalizer colorama llvmlite mpmath numba pycparser scipy threadpoolctl yaml"
_ZARR = "donfig fsspec msgpack msgspec numcodecs packaging zarr"
_OF_OTHERS = (
    "flows.families.completion flows.families.tensors flows.families.evaluation flows.families.streams "
    "flows.remote_ledger.remote_workspace flows.sites flows.commands.budget flows.releases.webhook dpca_tasks.audit"
)


@pytest.mark.parametrize(
    ("words", "may_load"),
    [
        (("registry", "show", "sub"), f"{_COMMAND} numpy"),
        (("budget", "show", "people"), f"{_LEDGER} mpmath"),
        (("dataset", "list"), f"{_LEDGER} {_SNAPSHOTS}"),
    ],
    ids=["registry", "budget", "dataset"],
)
@pytest.mark.usefixtures("released")
def test_a_command_that_shows_facts_loads_only_these_packages(words: tuple[str, ...], may_load: str) -> None:
    shown, _, packages = all_loaded_by(*words, "--json")
    assert json.loads(shown)
    assert packages - set(may_load.split()) == set()


def test_a_loaded_artifact_imports_numpy_alone(released: Path) -> None:
    script = "import dpca, sys; dpca.load('sub'); print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = {name for name in packages_distributions() if name not in ("numpy", "dpca") and not name.startswith("_")}
    assert set(done.stdout.split()) & others == set()


@pytest.mark.usefixtures("ready")
def test_a_direct_fit_of_few_declared_records_starts_no_cluster_and_loads_only_what_it_uses(
    dpca: Command, rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPCA_CLUSTER")
    ingest = ("dataset", "ingest", rows_file, "--name", "people", "--features", 6, "--records-at-most", 100, "--direct")
    assert dpca(*ingest).status == 0
    shown, modules, packages = all_loaded_by(*FIT, "--direct", "--yes", "--json")
    assert modules & set(_OF_OTHERS.split()) == set()
    assert packages - set(f"{_LEDGER} {_SNAPSHOTS} {_SUMS} {_ZARR}".split()) == set()
    assert json.loads(shown)["artifact"] == "sub@1"
    assert json.loads(shown)["cluster"].startswith("none; by the declared facts")


_ENDS = """
import atexit, sys, threading
from flows.cli import main

class Kept:
    def __del__(self):
        print("taken apart", file=sys.stderr)

kept = Kept()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread"))).start()
sys.exit(main())
"""


@pytest.mark.parametrize(("words", "status"), [(["--version"], 0), (["nothing"], 2)])
def test_the_process_ends_after_all_threads_and_skips_destruction_of_modules(words: list[str], status: int) -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == status
    assert ended.stdout.endswith("a thread\nat exit\n")
    assert "taken apart" not in ended.stderr


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, *path, name)


EVERY = list(commands(typer.main.get_command(build_app())))


def test_every_noun_is_in_one_of_four_groups(dpca: Command) -> None:
    nouns = {path[0] for path in EVERY if path}
    assert sorted(nouns) == sorted(name for names in COMMAND_GROUPS.values() for name in names)
    assert len(COMMAND_GROUPS) == 4
    shown = dpca("--help").out
    assert [shown.index(f"{group}:") for group in COMMAND_GROUPS] == sorted(
        shown.index(f"{group}:") for group in COMMAND_GROUPS
    )


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_no_help_line_is_truncated_or_longer_than_80_columns(
    dpca: Command, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = dpca(*path, "--help").out
    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if line.endswith("...") and "Usage:" not in line]


@pytest.mark.parametrize("path", [("subspace", "fit"), ("subspace", "refresh"), ("dataset", "ingest")], ids=" ".join)
def test_all_options_are_shown_in_groups(dpca: Command, path: tuple[str, ...]) -> None:
    shown = dpca(*path, "--help").out
    assert shown.count("\n  --") >= GROUPED_FROM
    assert sum(f"\n{group}:\n" in shown for group in OPTION_GROUPS) >= 2
    left = shown.partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in left.splitlines() if line.strip()] == ["--help"]


def test_help_of_options_of_privacy_names_the_glossary(dpca: Command) -> None:
    assert " ".join(TERMS.split()) in " ".join(dpca("subspace", "fit", "--help").out.split())


def test_the_reference_has_a_group_for_each_noun() -> None:
    page = reference(typer.main.get_command(build_app()))
    assert "## dpca pages build" in page
    assert "## dpca site build" not in page


@pytest.mark.parametrize(("releases", "text"), [(1, " is lost or damaged"), (2, " and 1 more are lost or damaged")])
def test_a_backup_names_the_first_file_that_is_lost_and_counts_the_others(
    released: Path, dpca: Command, tmp_path: Path, releases: int, text: str
) -> None:
    for number in range(1, releases):
        assert dpca(*FIT, "--run-key", f"again {number}", "--direct", "--yes").status == 0
    artifacts = sorted((released / "registry" / "artifacts").iterdir())
    assert len(artifacts) == releases
    for artifact in artifacts:
        (artifact / "manifest.json").unlink()
    made = dpca("backup", "create", tmp_path / "backup")
    assert made.err.endswith(f"warning: registry/artifacts/{artifacts[0].name}{text}\n")


WORDS: dict[str, Any] = {"components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.5}


@pytest.fixture(scope="module")
def documented_home(tmp_path_factory: pytest.TempPathFactory, rows_file: Path) -> Path:
    """Return a home with a dataset ``visits``, its budget, and a release ``news@champion``."""
    place = tmp_path_factory.mktemp("documented")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        words = ["dataset", "ingest", str(rows_file), "--name", "visits", "--features", str(FEATURES), "--direct"]
        assert main(words) == 0
        open_budget("visits", epsilon=4.0, delta=2e-6)
        fit_subspace("visits", publish="news", **WORDS)
        Workspace.open().promote("news", version=1, alias="champion")
    return place


@pytest.mark.parametrize("name", public.__all__)
def test_the_examples_of_a_docstring_run(name: str, documented_home: Path, home: Path) -> None:
    shutil.copytree(documented_home, home)
    shown = doctest.DocTestFinder(recurse=False).find(getattr(public, name), name)
    assert [len(test.examples) > 1 for test in shown] == [True]
    reported: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(shown[0], out=reported.append).failed == 0, "".join(reported)


@pytest.mark.parametrize("name", public.__all__)
def test_a_docstring_has_a_see_also_section(name: str) -> None:
    assert "\nSee Also\n" in (inspect.getdoc(getattr(public, name)) or "")


def test_a_function_call_gives_the_same_release_as_the_command(ready: Path, dpca: Command) -> None:
    assert ready.exists()
    made = fit_subspace("people", publish="sub", **WORDS)
    assert isinstance(made, PrivateSubspace)
    assert made.components.shape == (2, FEATURES)
    again = dpca(
        *("subspace", "fit", "people", "--components", 2, "--epsilon", 1, "--delta", 1e-6, "--clip-norm", 1.5),
        *("--publish", "sub", "--direct", "--yes", "--json"),
    )
    assert '"reused": true' in again.out
    assert [row.version for row in Registry.open().versions("sub")] == [1]
    assert np.array_equal(fit_subspace("people", publish="sub", **WORDS).components, made.components)


def test_a_call_that_is_refused_charges_nothing(ready: Path) -> None:
    assert ready.exists()
    before = Workspace.open().ledger.budget("people")
    with pytest.raises(BudgetExhausted):
        fit_subspace("people", publish="sub", **{**WORDS, "epsilon": 50.0})
    with pytest.raises((InvalidInput, Invalid)):
        fit_subspace("people", publish="sub", **{**WORDS, "components": 0})
    with pytest.raises(NotFound):
        fit_subspace("nobody", publish="sub", **WORDS)
    assert Workspace.open().ledger.budget("people") == before


def test_a_budget_is_opened_once_and_charged_by_fits(home: Path) -> None:
    assert not home.exists()
    budget = open_budget("patients", epsilon=2.0, delta=2e-6, relation="zero_out")
    rows = np.random.default_rng(0).normal(size=(500, 4))
    model = PrivatePCA(1, epsilon=1.0, delta=1e-6, clip_norm=2.0, slot="first", budget=budget).fit(rows)
    assert model.published_ == "subspace.patients@1"
    assert open_budget("patients", epsilon=2.0, delta=2e-6, relation="zero_out").population == "patients"
    with pytest.raises(Conflict):
        open_budget("patients", epsilon=3.0, delta=2e-6, relation="zero_out")
