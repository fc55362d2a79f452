"""Program that builds the wheel twice, compares the builds, and writes bills of materials and licenses.

The program writes ``FOLDER/*.whl``, ``SHA256SUMS`` and ``LICENCES.md``. The program also writes ``image.cdx.json`` and
``consumer.cdx.json``: bills of materials in CycloneDX 1.6 with the hashes of the lock files. Equal environments give
equal bytes.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.utils import canonicalize_name

from tests.deployments.lock import CONSUMER, IMAGE, WHOLE, entries
from tests.tools import output, python

ROOT = WHOLE.parent
PARTS = {"image": IMAGE, "consumer": CONSUMER}
"""The locks that get a bill of materials."""

DECLARED = {"dp-accounting": "Apache-2.0", "partd": "BSD-3-Clause"}
"""Licences read from the sources, for distributions whose metadata do not state them in a parseable form."""
CHOSEN = {"text-unidecode": "Artistic-1.0-Perl"}
"""The selected licence, for distributions that also offer one with obligations that this project cannot pass on."""
PERMITTED = re.compile(
    r"0BSD|Apache|Artistic|BSD|CC0|CNRI|ISC|MIT|MPL|Mozilla|PSF|Python|Zlib|LLVM|LGPL-3\.0-only"
)  # LGPL is permitted for psycopg, which is imported unmodified and can be replaced

type Bill = dict[str, Any]

_CHECK = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
print(fault or "", end="")
"""


def bills() -> dict[str, Bill]:
    """Return the bills of materials of image and consumer, from this environment and their lock files."""
    command = [str(python()), "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml"]
    with TemporaryDirectory() as folder:
        written = Path(folder) / "environment.json"
        options = ["--output-reproducible", "--no-validate", "-o", str(written), sys.executable]
        subprocess.run([*command, *options], check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
        whole = json.loads(written.read_text(encoding="utf-8"))
    return {part: _only(whole, entries(lock)) for part, lock in PARTS.items()}


def _only(whole: Bill, locked: Mapping[str, str]) -> Bill:
    """Return a bill of materials reduced to the distributions of a lock file, with the hashes of the lock."""
    components = []
    for component in whole["components"]:
        name = canonicalize_name(component["name"])
        if name in locked:
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", locked[name])
            licences = [{"license": {"id": DECLARED[name]}}] if name in DECLARED else component["licenses"]
            files = [
                {"type": "distribution", "url": component["purl"], "hashes": [{"alg": "SHA-256", "content": digest}]}
                for digest in hashes
            ]
            others = component.get("externalReferences", [])
            components.append({**component, "licenses": licences, "externalReferences": [*others, *files]})
    kept = {component["bom-ref"] for component in components}
    root = whole["metadata"]["component"]["bom-ref"]
    dependencies = [
        {**row, "dependsOn": [ref for ref in row["dependsOn"] if ref in kept]} if "dependsOn" in row else row
        for row in whole["dependencies"]
        if row["ref"] in kept or row["ref"] == root
    ]
    return {**whole, "components": components, "dependencies": dependencies}


def check(bill: Bill) -> None:
    """Validate a bill of materials by the schema of CycloneDX."""
    if fault := output(_CHECK, given=json.dumps(bill)):
        raise ValueError(fault)


def licences(bill: Bill) -> dict[str, str]:
    """Return the licenses of each distribution of a bill of materials, as text."""
    found = {}
    for component in bill["components"]:
        name = canonicalize_name(component["name"])
        found[name] = CHOSEN.get(name) or ", ".join(dict.fromkeys(map(_words, component["licenses"])))
    return dict(sorted(found.items()))


def _words(choice: Mapping[str, Any]) -> str:
    if "expression" in choice:
        return str(choice["expression"])
    licence = choice["license"]
    return str(licence.get("id") or licence["name"].rsplit(" :: ", 1)[-1])


def not_permitted(found: Mapping[str, str]) -> dict[str, str]:
    """Return the distributions with a license that is not permitted."""
    return {
        name: text
        for name, text in found.items()
        if not all(PERMITTED.search(part) for part in re.split(r", |\bAND\b", text))
    }


def build_wheel(source: Path, into: Path) -> Path:
    """Build the wheel from a copy of the sources, in a separate process, and return its path."""
    program = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", program, str(into)], cwd=source, check=True, capture_output=True)
    return into / done.stdout.decode().split()[-1]


def copy_sources(into: Path) -> Path:
    """Copy the sources of the wheel, without files that running the program generates."""
    shutil.copytree(ROOT, into, ignore=_all_but_sources)
    return into


def _all_but_sources(folder: str, names: Sequence[str]) -> Iterable[str]:
    kept = {"pyproject.toml", "README.md", "LICENSE", ".gitignore", "dpca", "flows", "dpca_tasks", "storage"}
    return [name for name in names if name == "__pycache__" or (Path(folder) == ROOT and name not in kept)]


def main(folder: Path) -> int:
    """Write wheel, bills and licenses to a folder.

    Return 1 and print a line if the builds differ or a license is not permitted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        builds = []
        for number in ("first", "second"):
            (into := Path(scratch, number)).mkdir()
            builds.append(build_wheel(copy_sources(into / "sources"), into))
        if builds[0].read_bytes() != builds[1].read_bytes():
            print("two builds of the wheel differ; nothing was written", file=sys.stderr)
            return 1
        shutil.copy(builds[0], folder)
    found = {}
    for part, bill in bills().items():
        check(bill)
        (folder / f"{part}.cdx.json").write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        found[part] = licences(bill)
    if refused := not_permitted(found["image"] | found["consumer"]):
        print(f"licences that are not permitted: {refused}", file=sys.stderr)
        return 1
    lines = [
        f"| {name} | {text} | {'yes' if name in found['consumer'] else ''} |" for name, text in found["image"].items()
    ]
    table = ["| distribution | licence | a consumer's, too |", "| --- | --- | --- |", *lines]
    (folder / "LICENCES.md").write_text(
        "\n".join(["# Licences of what is installed", "", *table, ""]), encoding="utf-8"
    )
    made = sorted(path for path in folder.iterdir() if path.suffix in {".whl", ".json", ".md"})
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in made]
    (folder / "SHA256SUMS").write_text("\n".join([*sums, ""]), encoding="utf-8")
    counts = ", ".join(f"{part}: {len(names)} distributions" for part, names in found.items())
    print(f"{builds[0].name}, built twice alike; {counts}, each with a permitted licence; see {folder}/LICENCES.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
