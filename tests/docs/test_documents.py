"""Documentation pages: settings, commands, tutorials and operators' pages agree with the code.

The tutorials work as typed. So do the operators' pages schedule.md, closed-loop.md, kubernetes.md,
object-store-and-postgresql.md and ledger.md. Commands that start services (``docker``, ``kubectl``, ``psql``,
``prefect``) are stubs here, which record their arguments and check that files among them exist. The real commands run
in ``tests/integration``, with the same arguments of ``prefect``.

Tables of packages become datasets within three commands, of which at most one fails; see `tests/data/messy`.

Each diagram and picture is drawn from its description, and its page states what it shows. Releases on two machines can
differ in their last digits, and the noise of a later round is drawn for the exact map. So pictures of releases are
compared by their numbers instead of their files.
"""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import typer

from docs import warm_picture
from docs.command_reference import reference
from docs.diagrams import DIAGRAMS, IMAGES, draw
from docs.rounds_picture import draw as draw_rounds
from docs.rounds_picture import released_rounds
from dpca.registry.reader import Registry
from flows.cli import build_app, main
from flows.reports.release_charts import THEMES, render
from flows.settings import Settings
from tests.docs import guide_inputs as inputs
from tests.docs.reader import DOCS, ROOT, Reader, shell_blocks
from tests.integration.services import POOL

PACKAGES = ("dpca", "dpca_tasks", "flows", "storage")


def settings_of_the_code() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {name for text in texts for name in re.findall(r"\bDPCA_[A-Z_]*[A-Z]\b", text)} | {
        f"DPCA_{name.upper()}" for name in Settings.model_fields
    }


def test_the_reference_lists_every_setting_and_no_other() -> None:
    page = (DOCS / "reference/settings.md").read_text(encoding="utf-8")
    listed = {
        name
        for row in page.splitlines()
        if row.startswith("|")
        for name in re.findall(r"`(DPCA_\w+)`", row.split("|")[1])
    }
    assert listed == settings_of_the_code()


def test_the_command_reference_is_complete() -> None:
    page = reference(typer.main.get_command(build_app()))
    for line in ("## dpca subspace fit", "## dpca dataset ingest", "## dpca registry promote", "| `--clip-norm` |"):
        assert line in page
    assert "None" not in page


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_command_in_the_documents_exists(page: Path) -> None:
    known = reference(typer.main.get_command(build_app()))
    for block in shell_blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith(("dpca ", "curator dpca ")):
                continue
            words = line.removeprefix("curator ").split()
            paths = (" ".join(words[:length]) for length in (4, 3, 2))
            path = next((path for path in paths if f"## {path}\n" in known), " ".join(words[:2]))
            section = known.partition(f"## {path}\n")[2].partition("\n## ")[0]
            assert section, f"{path} is no command"
            for option in (word for word in words if word.startswith("--")):
                assert f"`{option}`" in section, f"{path} has no option {option}"


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_file_that_the_documents_name_exists(page: Path) -> None:
    # files that the operator creates, not the repository
    made = {"deployments/.env", "deployments/tls", "deployments/sources"}
    text = page.read_text(encoding="utf-8")
    named = set(
        re.findall(r"(?<![\w/])(?:deployments|tests|flows|storage|dpca_tasks|benchmarks|\.ci)/[\w./-]*\w", text)
    )
    assert {name for name in named - made if not (ROOT / name).exists()} == set()
    for folder in re.findall(r"--kustomize (\S+)", text):
        assert (ROOT / folder / "kustomization.yaml").is_file()


def test_every_test_that_the_page_of_attacks_names_exists() -> None:
    page = (DOCS / "explanation" / "what-we-attacked.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| Attack |")]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test in: {row}"
        for path, name in named:
            assert re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path} has no {name}"


def test_the_tutorial_works_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install, *rest = shell_blocks(DOCS / "tutorial.md")
    assert install == "make .venv\n. .venv/bin/activate\n"
    scores, script = "--output scores.npy", "".join(rest)
    assert script.count(scores) == 1
    monkeypatch.chdir(ROOT)
    reader = Reader(tmp_path, monkeypatch, capsys)
    shown = reader.types(script.replace(scores, f"--output {tmp_path / 'scores.npy'}"))
    assert "artifact          census-map@1" in shown
    assert re.search(r"^reused +True$", shown, flags=re.MULTILINE)
    assert "(10, 123)\n1.0 analyze_gauss" in shown
    assert (tmp_path / "scores.npy").stat().st_size > 32_561 * 10 * 8


@pytest.mark.audit_only
def test_the_tutorial_of_completion_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the completion tutorial: it must recommend films that the user has not rated, best prediction first."""
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "tutorials" / "completion.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert "artifact          taste@1" in shown
    listed = re.findall(r"^(film\d+) +([\d.]+) *$", shown, flags=re.MULTILINE)
    recommended, predicted = listed[:5], dict(listed[5:])
    assert len(predicted) == 200
    mine = {line.partition(",")[0] for line in (tmp_path / "me.csv").read_text().splitlines()[1:]}
    assert not mine & {film for film, _ in recommended}
    ratings = [float(rating) for _, rating in recommended]
    assert ratings == sorted(ratings, reverse=True)
    assert ratings[0] == max(float(rating) for film, rating in predicted.items() if film not in mine)


@pytest.mark.audit_only
def test_the_tutorial_of_topics_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the topics tutorial: each topic must match the words and the weight of one true topic."""
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "tutorials" / "topics.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert re.search(r"^room +\d+$", shown, flags=re.MULTILINE)
    assert "artifact          report-topics@1" in shown
    listed = re.findall(r"^\d +(0\.\d+) +(\w.*?) *$", shown, flags=re.MULTILINE)
    made = [set(line.split()) for line in re.findall(r'^    "([a-z ]+)",$', script, flags=re.MULTILINE)]
    assert [float(weight) for weight, _ in listed] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.05)
    assert [
        {word.split()[0] for word in words.split(", ")} <= of_topic
        for (_, words), of_topic in zip(listed, made, strict=True)
    ] == [True] * 4
    assert "[[0. 1. 0. 0.]\n [0. 0. 0. 1.]]" in shown


@pytest.mark.audit_only
def test_the_guide_to_your_own_tables_works_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = "".join(shell_blocks(DOCS / "how-to" / "your-own-tables.md"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert len(re.findall(r"^norm_at_most +2\.23607$", shown, flags=re.MULTILINE)) == 2
    assert "artifact          people-map@1" in shown
    assert "('age', 'work=State', 'work=Private', 'work=Café', 'work=(other)', 'work=(missing)', 'since'" in shown
    assert "3000 scores, the first equal to the file: True" in shown


def test_the_how_to_of_nightly_streams_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "".join(shell_blocks(DOCS / "how-to" / "nightly-streams.md"))
    monkeypatch.setattr("flows.jobs.cluster_settings", lambda _: Settings(cluster="none"))
    shown = Reader(tmp_path, monkeypatch, capsys).types(script)
    assert re.findall(r"^artifact +(visits-nightly@\d)", shown, flags=re.MULTILINE) == [
        "visits-nightly@1",
        "visits-nightly@2",
        "visits-nightly@2",
    ]
    assert re.findall(r"^used +(\d+)$", shown, flags=re.MULTILINE) == ["0", "2"]
    assert set(re.findall(r"^spent +(\S+)$", shown, flags=re.MULTILINE)) == {"0", "1"}
    assert "row of one night" not in shown


STAND_IN = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$NOTED"
for word in "$@"; do
    case $word in
    deployments|deployments/*) [ -e "$word" ] || { echo "$word does not exist" >&2; exit 1; } ;;
    esac
done
"""
VISITS = """\
dpca dataset ingest visits.svm.gz --name visits --features 40 --population patients --records-at-most 200000
dpca budget open patients --epsilon 4 --delta 1e-6
"""
FIT = "dpca subspace fit visits --components 2 --epsilon 1 --delta 1e-7 --clip-norm 3 --publish visits-map\n"


class Operator(Reader):
    """A `Reader` in a folder with a copy of ``deployments``; stubs replace the programs that start services."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, monkeypatch, capsys, hurried=True)
        programs = folder / "bin"
        programs.mkdir()
        for name in ("docker", "kubectl", "psql", "prefect"):
            (programs / name).write_text(STAND_IN)
            (programs / name).chmod(0o700)
        self._noted = folder / "noted"
        monkeypatch.setenv("NOTED", str(self._noted))
        monkeypatch.setenv("PATH", str(programs), prepend=":")
        shutil.copytree(ROOT / "deployments", folder / "deployments", ignore=shutil.ignore_patterns(".env", "tls"))
        monkeypatch.chdir(folder)

    @property
    def noted(self) -> list[str]:
        """The recorded calls of the stubs, one line of arguments for each call."""
        return self._noted.read_text().splitlines()


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)


def script_of(name: str) -> str:
    (page,) = DOCS.rglob(name)
    return "".join(shell_blocks(page))


def test_a_schedule_is_deployed_by_the_commands_of_the_integration_test(operator: Operator) -> None:
    operator.types(script_of("schedule.md"))
    assert f"prefect work-pool create {POOL} --type process" in operator.noted
    assert "prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml" in operator.noted
    assert f"prefect worker start --pool {POOL}" in operator.noted
    services = (ROOT / "tests" / "integration" / "services.py").read_text(encoding="utf-8")
    assert '"deploy", "--all", "--prefect-file", "deployments/prefect.yaml"' in services
    (run,) = [line for line in operator.noted if line.startswith("prefect deployment run")]
    deployed = (ROOT / "deployments" / "prefect.yaml").read_text(encoding="utf-8")
    for name in re.findall(r"--param (\w+)=", run):
        assert re.search(rf"[{{ ]{name}: ", deployed), name


def test_an_arriving_file_is_released_and_promoted_and_its_automation_exists(operator: Operator) -> None:
    shown = operator.types(script_of("closed-loop.md"))
    assert re.search(r"^epsilon_each +0\.4", shown, flags=re.MULTILINE)
    assert re.search(r"^visits-map@1 +promoted +the first version that passes", shown, flags=re.MULTILINE)
    create = "automation create --from-file deployments/automations.yaml"
    assert operator.noted == [f"prefect {create}"]
    arrivals = (ROOT / "tests" / "integration" / "arrivals.py").read_text(encoding="utf-8")
    assert '"automation", "create", "--from-file", AUTOMATIONS' in arrivals


def test_containers_start_and_run_the_curators_commands(tmp_path: Path, operator: Operator) -> None:
    inputs.visits(tmp_path)
    script = script_of("kubernetes.md")
    assert script.count("alias curator=") == 2
    script = re.sub(r"^alias curator=.*\n", "", script, flags=re.MULTILINE)
    script = re.sub(r"^curator ", "", script, flags=re.MULTILINE)
    script, pinned = re.subn(r"^make pin-images\n", "", script, flags=re.MULTILINE)  # the test folder has no Makefile
    assert pinned == 1
    shown = operator.types(
        script.replace("/data/visits.svm.gz", "visits.svm.gz").replace("--features 5000", "--features 40")
    )
    assert re.search(r"^dataset +visits$", shown, flags=re.MULTILINE)
    assert (tmp_path / "deployments" / "tls" / "cert.pem").is_file()
    assert {line.split()[0] for line in operator.noted} == {"docker", "kubectl", "prefect"}
    assert "kubectl apply --kustomize deployments" in operator.noted


def test_object_store_and_postgresql_use_the_settings_of_their_page(operator: Operator) -> None:
    """The page must set variables that the code reads; its ``dpca doctor`` runs with the settings of this test."""
    script = script_of("object-store-and-postgresql.md")
    *exports, doctor = re.findall(r"^(?:export|dpca) .*\n", script, flags=re.MULTILINE)
    names = {name for line in exports for name in re.findall(r"(\w+)=", line)}
    assert {"DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL", "AWS_ENDPOINT_URL"} <= names
    operator.shell(re.sub(r"^dpca .*\n", "", script, flags=re.MULTILINE))
    assert operator.noted == ["psql --dbname postgres --file deployments/postgres/roles.sql"]
    assert "database" in operator.types(doctor)


def test_a_restored_ledger_continues_as_documented(tmp_path: Path, operator: Operator) -> None:
    inputs.visits(tmp_path)
    operator.types(VISITS)
    (home,) = {path.parent for path in tmp_path.rglob("dpca.sqlite")}
    copy = shutil.copytree(home, tmp_path / "copy")
    operator.types(FIT)
    made = Registry.open().resolve("visits-map@1").digest
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    for path in copy.glob("dpca.sqlite*"):
        shutil.copy(path, home / path.name)
    assert "visits-map@1" in operator.types(script_of("ledger.md"))
    assert Registry.open().resolve("visits-map@1").digest == made


MESSY = ROOT / "tests" / "data" / "messy"


@dataclass(frozen=True, kw_only=True)
class Story:
    """A new user's way from a first, wrong schema of a table to a dataset.

    Attributes
    ----------
    guesses : pairs of (text in the correct schema, text in the first schema)
    reported : names of the columns of which the check reports all faults at once
    drafts : options of each command that drafts a schema
    ingest : options of the ingest
    rows : number of rows of the snapshot
    """

    guesses: tuple[tuple[str, str], ...] = ()
    reported: frozenset[str] = frozenset()
    drafts: tuple[tuple[str, ...], ...] = ((),)
    ingest: tuple[str, ...] = ()
    rows: int = 0


STORIES = {
    "iris": Story(drafts=((), ("--no-header",)), ingest=("--on-error", "quarantine"), rows=151),
    "modechoice": Story(
        guesses=(("[1, 2, 3, 4]", "[1, 2, 3]"), ("kind: boolean}", "kind: boolean, when_true: [yes], missing: no}")),
        reported=frozenset({"choice", "mode"}),
        rows=200,
    ),
    "seattle-weather": Story(
        guesses=((', formats: ["%Y/%m/%d"]', ""), ("[drizzle, fog, rain, snow, sun]", "[rain, sun]")),
        reported=frozenset({"date", "weather"}),
        rows=100,
    ),
    "penguins-raw": Story(
        guesses=(('missing_texts: ["", "NA"]\n', ""), ("kind: id}", "kind: drop}"), ("Date Egg", "date egg")),
        reported=frozenset(
            {"Culmen Length (mm)", "Culmen Depth (mm)", "Flipper Length (mm)", "Body Mass (g)", "Date Egg", "date egg"}
        ),
        rows=120,
    ),
    "lymph_node": Story(
        guesses=((', formats: ["%d-%m-%Y"]', ""), ("values: [1, 2, 3]", "values: TO_DECLARE")),
        reported=frozenset({"diagdateb", "grade"}),
        rows=80,
    ),
}


@dataclass
class Shell:
    """Run ``dpca`` commands in this process, and record their exit codes."""

    capsys: pytest.CaptureFixture[str]
    statuses: list[int] = field(default_factory=list)

    def types(self, *words: str | Path) -> str:
        self.statuses.append(main([str(word) for word in words]))
        printed = self.capsys.readouterr()
        assert "unexpected" not in printed.err
        return printed.out


@pytest.mark.parametrize("name", STORIES)
def test_a_messy_table_is_ingested_within_three_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("DPCA_HOME", "DPCA_STATE_FOLDER"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    story, source, schema = STORIES[name], MESSY / f"{name}.csv", tmp_path / "schema.yaml"
    right = (MESSY / f"{name}.yaml").read_text(encoding="utf-8")
    shell = Shell(capsys)
    for words in story.drafts:
        draft = shell.types("schema", "draft", source, *words)
    assert "TO_DECLARE" in draft
    if story.guesses:
        first = right
        for piece, guess in story.guesses:
            assert piece in first
            first = first.replace(piece, guess)
        schema.write_text(first, encoding="utf-8")
        reported = shell.types("schema", "check", source, schema)
        for column in story.reported:
            assert f"\n{column} " in reported, reported
        assert len({line.split("  ")[0] for line in reported.splitlines()[1:-1]}) == len(story.reported), reported
    schema.write_text(right, encoding="utf-8")
    shown = shell.types(
        "dataset", "ingest", source, "--table-schema", schema, "--name", name, "--direct", *story.ingest
    )
    assert f"rows               {story.rows}\n" in shown
    assert len(shell.statuses) <= 3
    assert sum(status != 0 for status in shell.statuses) <= 1
    assert shell.statuses[-1] == 0


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_stored_diagram_equals_the_drawn_one(name: str) -> None:
    for theme in THEMES:
        assert (IMAGES / f"diagram-{name}-{theme}.svg").read_bytes() == render(draw(DIAGRAMS[name], theme=theme))


def test_each_diagram_is_on_a_page_in_both_themes_with_a_text_alternative() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name, diagram in DIAGRAMS.items():
        for inspect in THEMES:
            assert re.search(rf"images/diagram-{name}-{inspect}\.svg\n:alt: {re.escape(diagram.title)}\.\n", pages), (
                name
            )
    assert len(DIAGRAMS) >= 8


def test_arrows_and_areas_join_boxes_that_exist() -> None:
    for diagram in DIAGRAMS.values():
        boxes = {name for row in diagram.rows for name in row}
        named = {end for start, stop, _ in diagram.arrows for end in (start, stop)}
        assert named | {name for names in diagram.areas.values() for name in names} <= boxes


DIFFERENCE = 4
"""The largest difference between two machines in the number of eigenvalues above the noise."""


def counts_of(picture: bytes) -> list[int]:
    """Return the numbers of eigenvalues above the noise in the panels' titles."""
    return [int(number) for number in re.findall(r"Round \d: (\d+) above noise", picture.decode())]


def test_the_caption_states_what_the_picture_shows() -> None:
    shown = [counts_of((IMAGES / f"rounds-{theme}.svg").read_bytes()) for theme in THEMES]
    first, second, third = shown[0]
    assert shown == [shown[0]] * len(THEMES)
    stated = f"{first}, {second} and {third} of them are above the band"
    assert (DOCS / "how-to" / "rounds.md").read_text(encoding="utf-8").count(stated) == 2


def test_the_picture_shows_a_release_of_the_shipped_data() -> None:
    released = counts_of(render(draw_rounds(released_rounds(), theme="light")))
    assert released == pytest.approx(counts_of((IMAGES / "rounds-light.svg").read_bytes()), abs=DIFFERENCE)


@pytest.mark.audit_only
def test_the_guide_states_what_the_picture_shows() -> None:
    one, three, warm = (np.mean(each.months[2:]) for each in warm_picture.released_months())
    text = " ".join((DOCS / "how-to" / "better-every-month.md").read_text(encoding="utf-8").split())
    stated = re.search(
        r"One round captures about (\.\d+), and three rounds (\.\d+)\. .*? capture about (\.\d+)\.", text
    )
    assert stated is not None
    assert [one, three, warm] == pytest.approx([float(each) for each in stated.groups()], abs=0.008)
