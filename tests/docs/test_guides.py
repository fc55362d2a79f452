"""Documentation pages work as typed, on small files in the formats that the pages use.

- Every page that shows a command is in one of the tables: run here, run by another test, or not run for a stated
  reason.
- The page consume.md works as typed; ``make consumer`` runs its installation commands.
- The pages of the estimators work as typed, and print the numbers that they state.
- Notebooks run from the first cell to the last, in a separate process, and contain no stale output.
- The commands of the page export.md work as typed; ``make exports`` runs its other code.
- The numbers of the page about streams agree with the program.
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from docs.gallery import as_markdown, run_notebook
from dpca.artifacts.files import write_artifact
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca_tasks.accounting.calibration import UNITS, gaussian_noise_multiplier, smallest_epsilon
from dpca_tasks.accounting.factorisation import Weights, choose_weights, extension_event, tree_factors
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from flows.cli import main
from papers.continual import NIGHTS
from tests.consumer.__main__ import PAGE
from tests.docs import guide_inputs as inputs
from tests.docs.reader import DOCS, FENCED, ROOT, Reader, python_blocks, shell_blocks
from tests.exports.__main__ import BROWSER, ENGINES, NAME, blocks, subspaces
from tests.exports.__main__ import PAGE as EXPORT_PAGE
from tests.s3 import Server
from tests.web_server import serve_folder

CENSUS = """\
dpca dataset ingest census.svm.gz --name census --features 40 --population adults --records-at-most 50000
dpca budget open adults --epsilon 40 --delta 1e-5
dpca subspace fit census --components 3 --epsilon 8 --delta 1e-6 --clip-norm 3 --publish census-map
dpca registry promote census-map@1 champion
"""
VISITS = """\
dpca dataset ingest visits.svm.gz --name visits --features 40 --population patients --records-at-most 200000
"""
RELEASED = """\
dpca budget open patients --epsilon 4 --delta 1e-6
dpca subspace fit visits --components 2 --epsilon 1 --delta 1e-7 --clip-norm 3 --publish visits-map
"""
RATINGS = """\
dpca dataset ingest ratings.csv --name films --feature-names items.txt --columns row=user,column=film,value=stars \\
    --duplicates last --keep-zeros --records-at-most 50000
dpca dataset ingest ratings.csv --name late-films --feature-names items.txt --population late \\
    --columns row=user,column=film,value=stars --duplicates last --keep-zeros --records-at-most 50000 \\
    --allow-shared-rows
dpca budget open films --epsilon 10 --delta 1e-6
dpca budget open late --epsilon 10 --delta 1e-6
dpca completion fit films --rank 2 --ratings-between 0.5:5 --ratings-per-user 20 --epsilon 5 --delta 1e-6 \\
    --publish taste
"""
SITES = "".join(
    f"dpca dataset ingest {site}.npy --name {site} --records-at-most 50000\n"
    f"dpca budget open {site} --epsilon 40 --delta 1e-5\n"
    for site in ("north", "east", "south")
)


@dataclass(frozen=True, kw_only=True)
class Guide:
    """Inputs of a page (files, and a script to run first), replacements that make it smaller, and expected output."""

    files: Callable[[Path], None] = field(default=lambda folder: None)
    before: str = ""
    smaller: tuple[tuple[str, str], ...] = ()
    shows: tuple[str, ...] = ()


def census(folder: Path) -> None:
    """Write random yes/no rows under the file name of the census data."""
    inputs.visits(folder, name="census", rows=2_000)


def census_and_films(folder: Path) -> None:
    """Write the input files of the subspace and completion guides."""
    census(folder)
    inputs.films(folder)


TYPED = {
    "README.md": Guide(
        files=inputs.census,
        shows=(r"^artifact +census-map@1$", r"^around +zero; ", r"^remaining +\d"),
    ),
    "docs/how-to/choose.md": Guide(
        files=inputs.visits, before=VISITS, smaller=(("--features 5000", "--features 40"),), shows=(r"^forecast ",)
    ),
    "docs/how-to/better-every-month.md": Guide(
        files=inputs.months, shows=(r"^in_rounds +1 round, ", r"^  started from +visits-map@1$")
    ),
    "docs/how-to/audit-trail.md": Guide(
        files=inputs.visits, before=VISITS + RELEASED, shows=(r"^spent +0\.\d+$", r"^pinned +False$")
    ),
    "docs/how-to/backup.md": Guide(
        files=inputs.visits,
        before=VISITS + RELEASED + "dpca budget export patients --output trail.json\n",
        shows=(
            r"^sealed keys +publisher-signing.key, trail-signing.key$",
            r"^restored on sqlite in ",
            r"^missing +0$",
            r"^nothing to charge again$",
        ),
    ),
    "docs/how-to/sign-and-trust.md": Guide(
        files=inputs.visits,
        before=VISITS + RELEASED,
        shows=(r"^signed +True$", r"^[0-9a-f]{64} +active: \*$", r"^[0-9a-f]{64} +retired: \*$"),
    ),
    "docs/how-to/evaluate.md": Guide(
        files=census_and_films,
        before=CENSUS + RATINGS,
        smaller=(("--count 20", "--count 5"),),
        shows=(r"^share +\d", r"^artifact +census-map.evaluation@1$", r"^rmse +\d"),
    ),
    "docs/how-to/what-else-a-release-can-tell.md": Guide(
        files=inputs.people,
        shows=(r"^artifact +people-moment@1$", r"^artifact +people-jobs@1$", r"^correlation_rms +0\.\d"),
    ),
    "docs/how-to/complete-ratings.md": Guide(
        files=inputs.films,
        smaller=(("--rank 8", "--rank 2"), ("--count 20", "--count 5")),
        shows=(r"^artifact +taste@1$", r"^film\d+ "),
    ),
    "docs/how-to/decompose.md": Guide(
        files=inputs.reports,
        smaller=(("--components 8", "--components 2"),),
        shows=(r"^artifact +report-topics@1$", r"word\d"),
    ),
    "docs/how-to/several-sites.md": Guide(
        files=inputs.sites,
        before=SITES,
        smaller=(("--components 10", "--components 3"), ("--components 5", "--components 2")),
        shows=(r"^artifact +joint-map@1$", r"^artifact +joint-topics@1$", r"^artifact +joint-centres@1$"),
    ),
    "docs/how-to/from-a-messy-file-to-a-dataset.md": Guide(
        shows=(
            r"^age +missing: must be refuse, category, or a public number",
            r"^clerk +is in the file, but not in the schema",
            r"^weight +has a value that is not a finite number.* 1 +line 4 *$",
            r"^rows checked: 6; rules broken: 7$",
            r"^quarantined +2$",
            r"^nothing arrived$",
        )
    ),
    "docs/how-to/erase-a-person.md": Guide(
        shows=(
            r"^erased_rows +2$",
            r"^older snapshots: 1 +dpca dataset remove visits --older --force",
            r"^verified +True$",
        )
    ),
    "docs/explanation/claimed-and-true.md": Guide(shows=(r"dp_spca",)),
    "docs/explanation/forecast.md": Guide(shows=(r"^analyze_gauss +\d", r"^mechanism +wishart$")),
}
# the command on this page computes every row of a table, which takes long
LONG = ("docs/explanation/claimed-and-true.md",)
ELSEWHERE = {
    "docs/journeys.md": "tests/docs/test_journeys.py",
    "docs/tutorial.md": "tests/docs/test_documents.py",
    "docs/tutorials/completion.md": "tests/docs/test_documents.py",
    "docs/tutorials/topics.md": "tests/docs/test_documents.py",
    "docs/how-to/sites-as-parties.md": "tests/flows/sites/test_releases.py",
    "docs/how-to/remote-ledger.md": "tests/flows/remote_ledger/test_workspaces.py",
    "docs/how-to/export.md": "tests/docs/test_guides.py",
    "docs/how-to/nightly-streams.md": "tests/docs/test_documents.py",
    "docs/how-to/your-own-tables.md": "tests/docs/test_documents.py",
    "docs/how-to/schedule.md": "tests/docs/test_documents.py",
    "docs/how-to/closed-loop.md": "tests/docs/test_documents.py",
    "docs/how-to/kubernetes.md": "tests/docs/test_documents.py",
    "docs/how-to/object-store-and-postgresql.md": "tests/docs/test_documents.py",
    "docs/how-to/consume.md": "tests/docs/test_guides.py",
    "docs/how-to/web-page.md": "tests/flows/web/test_serving.py",
    "docs/explanation/histories.md": "tests/histories/test_histories.py",
    "docs/explanation/ledger.md": "tests/docs/test_documents.py",
    "docs/explanation/shang.md": "tests/papers/test_shang.py",
    "docs/explanation/cape.md": "tests/papers/test_main.py",
    "docs/explanation/dpals.md": "tests/papers/test_main.py",
}


def pages_with_commands() -> list[Path]:
    return [page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if shell_blocks(page)]


def test_every_page_that_shows_a_command_is_executed_by_a_test() -> None:
    assert {str(page.relative_to(ROOT)) for page in pages_with_commands()} == {*TYPED, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {page}"


@pytest.mark.parametrize("page", sorted(ROOT.joinpath("docs").rglob("*.md")), ids=lambda page: page.stem)
def test_all_commands_are_in_executed_blocks(page: Path) -> None:
    text = re.sub(r"^```sh\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert not [line for block in fenced for line in block.splitlines() if re.match(r"(\$ )?dpca ", line)]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.audit_only] if page in LONG else []) for page in TYPED]
)
def test_a_guide_works_as_it_is_typed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = TYPED[page]
    reader = Reader(tmp_path, monkeypatch, capsys, hurried=True)
    monkeypatch.chdir(tmp_path)
    guide.files(tmp_path)
    reader.types(guide.before)
    script = "".join(shell_blocks(ROOT / page))
    for written, small in guide.smaller:
        assert written in script
        script = script.replace(written, small)
    shown = reader.types(script)
    for line in guide.shows:
        assert re.search(line, shown, flags=re.MULTILINE), shown
    for block in python_blocks(ROOT / page):
        exec(compile(block, page, "exec"), {"rows": np.ones((2, 40))})


BEFORE = """\
dpca dataset ingest rows.npy --name census --records-at-most 50000 --population adults --direct
dpca budget open adults --epsilon 40 --delta 1e-5
dpca subspace fit census --components 6 --epsilon 8 --delta 1e-6 --clip-norm 3 --publish census-map --direct --yes
dpca registry promote census-map@1 champion
"""


def test_the_page_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], s3_server: Server
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = [block for block in FENCED.findall(text) if "-m venv" not in block]
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("DPCA_HOME", str(home))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    rows = np.random.default_rng(0).normal(size=(500, 8))
    np.save("rows.npy", rows)
    columns = {"patient": range(500), **{f"v{at}": rows[:, at] for at in range(8)}}
    pq.write_table(pa.table(columns), "rows.parquet")
    for line in (BEFORE + "".join(commands)).splitlines():
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert re.search(r"^artifact +census-map-small@1$", capsys.readouterr().out, flags=re.MULTILINE)
    s3_server.enter(monkeypatch)
    for path in (home / "registry").rglob("*"):
        if path.is_file():
            s3_server.call("PUT", f"{s3_server.bucket}/{tmp_path.name}/{path.relative_to(home)}", path.read_bytes())
    names: dict[str, Any] = {"rows": np.eye(2, 8), "labels": [0, 1]}
    with serve_folder(home) as server:
        there = {"/mnt/released": str(home), "s3://bucket/prefix": s3_server.url(tmp_path.name)}
        for example, address in {**there, "https://data.example.org/registry": f"{server.url}/registry"}.items():
            assert example in text
            text = text.replace(example, address)
        blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
        assert server.requested
    assert pq.read_table("scores.parquet").num_rows == 500
    assert names["scores"].shape == (2, 6)
    assert names["model"].predict(names["rows"]).tolist() == [0, 1]
    assert names["rows_again"].shape == (2, 8)


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python blocks of a page one after the other; return the variables that they define."""
    for block in python_blocks(DOCS / "how-to" / page):
        exec(compile(block, page, "exec"), names)
    return names


def test_the_page_of_estimators_works_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    names = run("estimators.md", {})
    assert list(names["scores"].columns) == ["privatepca0", "privatepca1"]
    # the first two components have 20/24 of the variance of the generated rows
    assert 0.8 < names["shares"].sum() < 0.9
    assert names["again"].components_.tobytes() == names["model"].components_.tobytes()
    assert names["spent"] == pytest.approx(0.91, abs=0.005)
    assert names["name"] == "subspace.patients@1"
    assert names["predicted"].shape == (1, 20)
    assert np.clip(names["same"], 1, 5) == pytest.approx(names["predicted"])


def test_the_page_for_users_of_diffprivlib_works_as_typed() -> None:
    """Run the page for users of diffprivlib: components with and without privacy must agree.

    At epsilon 8 and 4,000 rows, the noise is a hundredth of the eigengaps.
    """
    rows = np.random.default_rng(4).normal(size=(4_000, 5)) * [2.0, 1.0, 0.3, 0.3, 0.3]
    names = run("coming-from-diffprivlib.md", {"rows": rows})
    assert names["scores"].shape == (4_000, 2)
    assert "does not fit into InMemoryBudget(epsilon=3, delta=1e-06)" in names["line"]
    overlap = names["plain"].components_ @ names["private"].components_.T
    assert np.linalg.svd(overlap, compute_uv=False) == pytest.approx([1.0, 1.0], abs=0.01)
    assert names["scaled"].transform(rows).shape == (4_000, 2)


def test_every_parameter_that_the_page_names_exists() -> None:
    from flows.estimators import PrivatePCA

    page = (DOCS / "how-to" / "coming-from-diffprivlib.md").read_text(encoding="utf-8")
    here = "".join(row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and row.count("|") > 3)
    named = set(re.findall(r"\b(\w+)=", here)) - {"k"}
    assert {"center", "relation", "clip_norm", "mechanism"} & named
    assert named <= set(PrivatePCA().get_params())


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
SHOWS = {
    "components": ("census-map@1", "census-map-small@1", "(2, 10)"),
    "moments": ("census-moment@1", "correlations differ from 0", "\n1 release\n", "<th>marriage</th>"),
    "ratings": ("taste@1", "\nfilm"),
    "topics": ("report-topics@1", "bank, rate, loan, credit"),
    "sites": ("joint-cape-pca@1", "joint-conv@1"),
}


def test_each_family_has_a_notebook() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SHOWS)


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(
            notebook, id=notebook.stem, marks=[] if notebook.stem == "components" else [pytest.mark.audit_only]
        )
        for notebook in NOTEBOOKS
    ],
)
def test_a_notebook_runs_from_the_first_cell_to_the_last(notebook: Path, tmp_path: Path) -> None:
    """Run a notebook: its output must equal the recorded output, except for numbers, which depend on new noise."""
    recorded, made = json.loads(notebook.read_text(encoding="utf-8")), run_notebook(notebook, tmp_path)
    for shown in SHOWS[notebook.stem]:
        assert shown in as_markdown(made)
    for before, after in zip(recorded["cells"], made["cells"], strict=True):
        kinds = [[output["output_type"] for output in cell.get("outputs", ())] for cell in (before, after)]
        assert kinds[0] == kinds[1], "".join(before["source"])


def test_a_notebook_is_a_page_with_its_recorded_outputs() -> None:
    page = as_markdown(json.loads((DOCS / "notebooks" / "components.ipynb").read_text(encoding="utf-8")))
    assert page.startswith("# Principal components of a private table")
    assert "```python\nimport os" in page
    assert "census-map@1 - captures " in page
    assert "data:image/png;base64," in page


def test_the_commands_work_as_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(home))
    subspace = subspaces()["around a mean"]
    pointer = Pointer(name=NAME, versions={1: write_artifact(subspace, home=home)}, aliases={"champion": 1})
    (home / Pointer.path(NAME)).parent.mkdir(parents=True)
    (home / Pointer.path(NAME)).write_bytes(pointer.encode())
    skops, io = ModuleType("skops"), ModuleType("skops.io")
    skops.io, io.dumps = io, lambda found: type(found).__name__.encode()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skops", skops)
    monkeypatch.setitem(sys.modules, "skops.io", io)
    for line in "".join(FENCED.findall(EXPORT_PAGE.read_text(encoding="utf-8"))).splitlines():
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    with np.load("census-map.npz") as archive:
        np.testing.assert_array_equal(archive["components"], subspace.components)
    assert json.loads(Path("census-map-mlflow/tags.json").read_text())["dpca.artifact"] == f"{NAME}@1"
    assert Path("census-map.skops").read_bytes() == b"PCA"
    written = Path("census-map.onnx").read_bytes()
    Registry.open().export(f"{NAME}@champion", "census-map.onnx", format="onnx")
    assert Path("census-map.onnx").read_bytes() == written


@pytest.mark.parametrize("engine", ENGINES)
def test_the_code_for_each_engine_is_complete(engine: str) -> None:
    code = blocks(ENGINES[engine][0])
    assert code
    for block in code:
        compile(block, EXPORT_PAGE.name, "exec")


def test_the_lock_of_the_page_names_no_host_and_has_a_hash_for_each_package() -> None:
    lock = (BROWSER / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in lock
    packages = {name: entry for name, entry in json.loads(lock)["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    imports = (BROWSER / "index.html").read_text(encoding="utf-8")
    assert all(f"./{name}/" in imports for name in packages)


CONTINUAL_PAGE_PAGE = (Path(__file__).parents[2] / "docs/explanation/continual.md").read_text(encoding="utf-8")
TEXT = " ".join(CONTINUAL_PAGE_PAGE.split())
YEAR = choose_weights("sqrt", ticks=365)
ENDLESS = choose_weights("power")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in CONTINUAL_PAGE_PAGE.splitlines()
    if re.match(r"\| (\d|`)", line)
]


def message(value: float, *, places: int = 2) -> str:
    """Format a number as the page about streams does."""
    return f"{value:.{places}f}".removeprefix("0") if value < 1 else f"{value:.{places}f}"


@pytest.mark.parametrize("row", [row for row in ROWS if row[0].isdigit()], ids=lambda row: row[0])
def test_factors_of_all_rows_so_far(row: list[str]) -> None:
    nights = int(row[0])
    stream = choose_weights("sqrt", ticks=nights).factors(nights)
    typical = float(np.sqrt((stream**2).mean()))
    expected = (
        math.sqrt(nights),
        math.sqrt((nights + 1) / 2),
        tree_factors(nights).max(),
        stream.max(),
        typical,
        stream[0],
        ENDLESS.factors(nights)[-1],
    )
    assert row[1:] == [message(value) for value in expected]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if re.search(r"\d", row[0]) and "`" in row[0]], ids=lambda row: row[0]
)
def test_factors_for_ever(row: list[str]) -> None:
    strategy, length = re.findall(r"window|decay", row[0])[0], int(re.findall(r"\d+", row[0])[0])
    if strategy == "window":
        factors = choose_weights("window", window=length).factors(1200, "window")
    else:
        factors = choose_weights("decay", half_life=length).factors(1200, "decay")
    assert row[-1] == message(factors.max())


def test_every_row_of_both_tables_is_checked() -> None:
    assert len(ROWS) == 4 + 8
    assert len([row for row in ROWS if re.search(r"\d", row[0])]) == 4 + 6


def test_a_years_sensitivity_and_weights() -> None:
    assert f"for 365 nights, zeta is {YEAR.zeta(365):.3f}" in TEXT
    assert f"for a year they are {', '.join(map(str, YEAR.weights[:4]))}, ... divided by {2**YEAR.bits}" in TEXT


def test_instalments_and_extensions() -> None:
    parts = [float(YEAR.zeta_squared(to) / YEAR.zeta_squared(365)) for to in (1, 7, 30, 90)]
    assert [f"{part:.0%}".replace("%", " %") for part in parts] == ["34 %", "57 %", "73 %", "85 %"]
    assert "34 % for the first night, 57 % for 7 nights, 73 % for 30 nights and 85 % for 90 nights" in TEXT
    multiplier = gaussian_noise_multiplier(epsilon=1.0, delta=1e-6)
    more = extension_event(YEAR, horizon=365, charged=365, to=730, noise_multiplier=multiplier)
    squares = 1 / Fraction(multiplier) ** 2, 1 / Fraction(more["noise_multiplier"]) ** 2
    assert f"costs {float(squares[1] / squares[0]):.0%} more".replace("%", " %") in TEXT
    assert f"becomes {smallest_epsilon(math.ceil(sum(squares) * UNITS), 1e-6):.3f}" in TEXT


def share(weights: Weights, *, present: range, tick: int) -> float:
    """Return the weight of a record in the estimate at a tick, if the record is in the data during ``present``."""
    multipliers = coefficients(weights, kept=range(1, tick + 1))
    return sum(float(multipliers[at - 1]) * weights.weight(at - present[0]) for at in present) / (1 << weights.bits)


@pytest.mark.parametrize(("since", "declared"), [(7, 0.09), (30, 0.18), (182, 0.50)])
def test_a_correction_is_followed_by_the_stated_law(since: int, declared: float) -> None:
    law = 2 / math.pi * math.asin(math.sqrt(since / 365))
    assert law == pytest.approx(declared, abs=0.006)
    weights = choose_weights("sqrt", ticks=365)
    before = share(weights, present=range(1, 366 - since), tick=365)
    assert 1 - before == pytest.approx(law, abs=0.025)
    assert share(weights, present=range(1, 366), tick=365) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("later", "declared"), [(30, 0.50), (365, 0.18), (3650, 0.06)])
def test_a_removed_record_fades_by_the_stated_law(later: int, declared: float) -> None:
    law = 2 / math.pi * math.asin(math.sqrt(30 / (30 + later)))
    assert law == pytest.approx(declared, abs=0.006)
    if later < 1000:
        found = share(choose_weights("sqrt", ticks=30 + later), present=range(1, 31), tick=30 + later)
        assert found == pytest.approx(law, abs=0.025)


def test_arrivals_of_a_lost_answer() -> None:
    assert ".50 of them after 1 tick, .78 after 7 ticks and .90 after 30 ticks" in TEXT
    for later, declared in {1: 0.50, 7: 0.78, 30: 0.90}.items():
        tick = 40 + later
        kept = [at for at in range(1, tick + 1) if at != 40]
        found = coefficients(YEAR, kept=kept) @ [YEAR.weight(at - 40) / 2**YEAR.bits for at in kept]
        assert found == pytest.approx(declared, abs=0.005)


def test_the_loss_factor_of_a_readmitted_record_is_the_stated_one() -> None:
    """Remove a record before tick 181 and add it again at tick 181: the page states the factor of its loss."""
    squares = YEAR.zeta_squared(180) + YEAR.zeta_squared(185)
    assert f"multiply the privacy loss by {math.sqrt(squares / YEAR.zeta_squared(365)):.2f}" in TEXT


def test_the_stated_captured_variance_is_that_of_the_reproduction() -> None:
    declared = {nights: message(expected, places=3) for nights, (expected, _) in NIGHTS.items()}
    assert f"Over 32 nights, a stream captures {declared[32]} of the variance" in TEXT
    assert f"Over 128 nights, a stream captures {declared[128]} and separate releases .810" in TEXT


def test_the_size_of_kept_answers() -> None:
    year = {features: 365 * 4 * features * (features + 1) for features in (123, 2000)}
    assert f"{year[123] / 1e6:.0f} MB for 123 features and {year[2000] / 1e9:.1f} GB for 2,000" in TEXT
