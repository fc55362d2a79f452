"""Guides work as they are typed, on small files of the shapes that they speak of.

Every page that shows a command is in one of the tables: typed here, typed by another test, or not typed for a reason.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.docs import guide_inputs as inputs
from tests.docs.reader import DOCS, ROOT, Reader, python_blocks, shell_blocks

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
    """What a page takes for granted (files, and a script), what is made smaller in it, and what it must show."""

    files: Callable[[Path], None] = field(default=lambda folder: None)
    before: str = ""
    smaller: tuple[tuple[str, str], ...] = ()
    shows: tuple[str, ...] = ()


def census(folder: Path) -> None:
    """Write the census, as rows of yes and no."""
    inputs.visits(folder, name="census", rows=2_000)


def census_and_films(folder: Path) -> None:
    """Write the files of two families."""
    census(folder)
    inputs.films(folder)


TYPED = {
    "README.md": Guide(
        files=inputs.visits,
        smaller=(("--features 5000", "--features 40"),),
        shows=(r"^artifact +visits-map@1$", r"^around +zero; ", r"^remaining +\d"),
    ),
    "docs/how-to/choose.md": Guide(
        files=inputs.visits, before=VISITS, smaller=(("--features 5000", "--features 40"),), shows=(r"^forecast ",)
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
            r"^clerk +is in the file and not in the schema",
            r"^weight +has a value that is no finite number.* 1 +line 4 *$",
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
LONG = ("docs/explanation/claimed-and-true.md",)  # computes every row of its table
ELSEWHERE = {
    "docs/tutorial.md": "tests/docs/test_documents.py",
    "docs/tutorials/completion.md": "tests/docs/test_documents.py",
    "docs/tutorials/topics.md": "tests/docs/test_documents.py",
    "docs/how-to/sites-as-parties.md": "tests/flows/sites/test_operators_guide.py",
    "docs/how-to/remote-ledger.md": "tests/flows/remote_ledger/test_workspaces.py",
    "docs/how-to/export.md": "tests/docs/test_export.py",
    "docs/how-to/nightly-streams.md": "tests/docs/test_documents.py",
    "docs/how-to/your-own-tables.md": "tests/docs/test_documents.py",
    "docs/how-to/schedule.md": "tests/docs/test_operations.py",
    "docs/how-to/closed-loop.md": "tests/docs/test_operations.py",
    "docs/how-to/kubernetes.md": "tests/docs/test_operations.py",
    "docs/how-to/object-store-and-postgresql.md": "tests/docs/test_operations.py",
    "docs/how-to/consume.md": "tests/docs/test_consume.py",
    "docs/how-to/web-page.md": "tests/flows/web/test_serving.py",
    "docs/explanation/histories.md": "tests/histories/test_soak.py",
    "docs/explanation/ledger.md": "tests/docs/test_operations.py",
    "docs/explanation/shang.md": "tests/papers/test_shang.py",
}


def pages_with_commands() -> list[Path]:
    return [page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if shell_blocks(page)]


def test_every_page_that_shows_a_command_is_executed_by_a_test() -> None:
    assert {str(page.relative_to(ROOT)) for page in pages_with_commands()} == {*TYPED, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {page}"


@pytest.mark.parametrize("page", sorted(ROOT.joinpath("docs").rglob("*.md")), ids=lambda page: page.stem)
def test_commands_stand_in_blocks_that_are_executed(page: Path) -> None:
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
