"""Operators' pages work as they are typed.

They are schedule.md, closed-loop.md, kubernetes.md, object-store-and-postgresql.md and ledger.md.

What starts services (``docker``, ``kubectl``, ``psql``, ``prefect``) is a stand-in here that notes its words and checks
that the files among them exist: the real ones run in ``tests/integration``, by the same words of ``prefect``.
"""

import re
import shutil
from pathlib import Path

import pytest

from storage.registry.reader import Registry
from tests.docs import guide_inputs as inputs
from tests.docs.reader import DOCS, ROOT, Reader, shell_blocks
from tests.integration.services import POOL

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
    """A reader in a folder with the deployments of a clone, whose programs for services are stand-ins."""

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
        """What the stand-ins were told, one line a call."""
        return self._noted.read_text().splitlines()


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, monkeypatch, capsys)


def script_of(name: str) -> str:
    (page,) = DOCS.rglob(name)
    return "".join(shell_blocks(page))


def test_a_schedule_is_deployed_by_the_words_that_integration_runs_for_real(operator: Operator) -> None:
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


def test_a_file_that_arrives_is_released_and_promoted_and_its_automation_exists(operator: Operator) -> None:
    shown = operator.types(script_of("closed-loop.md"))
    assert re.search(r"^epsilon_each +0\.4", shown, flags=re.MULTILINE)
    assert re.search(r"^visits-map@1 +promoted +the first version that passes", shown, flags=re.MULTILINE)
    create = "automation create --from-file deployments/automations.yaml"
    assert operator.noted == [f"prefect {create}"]
    arrivals = (ROOT / "tests" / "integration" / "arrivals.py").read_text(encoding="utf-8")
    assert '"automation", "create", "--from-file", AUTOMATIONS' in arrivals


def test_containers_start_and_the_curator_types_its_commands_in_them(tmp_path: Path, operator: Operator) -> None:
    inputs.visits(tmp_path)
    script = script_of("kubernetes.md")
    assert script.count("alias curator=") == 2
    script = re.sub(r"^alias curator=.*\n", "", script, flags=re.MULTILINE)
    script = re.sub(r"^curator ", "", script, flags=re.MULTILINE)
    script, pinned = re.subn(r"^make pin-images\n", "", script, flags=re.MULTILINE)  # this folder has no Makefile
    assert pinned == 1
    shown = operator.types(
        script.replace("/data/visits.svm.gz", "visits.svm.gz").replace("--features 5000", "--features 40")
    )
    assert re.search(r"^dataset +visits$", shown, flags=re.MULTILINE)
    assert (tmp_path / "deployments" / "tls" / "cert.pem").is_file()
    assert {line.split()[0] for line in operator.noted} == {"docker", "kubectl", "prefect"}
    assert "kubectl apply --kustomize deployments" in operator.noted


def test_an_object_store_and_postgresql_take_the_settings_of_their_page(operator: Operator) -> None:
    """The settings are spelled as the code reads them; doctor runs with those of this test."""
    script = script_of("object-store-and-postgresql.md")
    *exports, doctor = re.findall(r"^(?:export|dpca) .*\n", script, flags=re.MULTILINE)
    names = {name for line in exports for name in re.findall(r"(\w+)=", line)}
    assert {"DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL", "AWS_ENDPOINT_URL"} <= names
    operator.shell(re.sub(r"^dpca .*\n", "", script, flags=re.MULTILINE))
    assert operator.noted == ["psql --dbname postgres --file deployments/postgres/roles.sql"]
    assert "database" in operator.types(doctor)


def test_a_restored_ledger_goes_on_as_its_page_says(tmp_path: Path, operator: Operator) -> None:
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
