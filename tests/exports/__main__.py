"""Program that uses exported subspaces in separate, temporary environments of other libraries.

The program runs the code of the page ``docs/how-to/export.md``, and the web page in ``docs/javascript``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hatchling.build
import numpy as np

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from tests.consumer.__main__ import ROOT
from tests.web_server import flipped, serve_folder

PAGE = ROOT / "docs" / "how-to" / "export.md"
BROWSER = ROOT / "docs" / "javascript"
HERE = Path(__file__).parent
NAME = "census-map"
WITHIN = 1e-6
ENGINES: Mapping[str, tuple[str, Sequence[str]]] = {
    "onnx": ("ONNX", ("numpy", "onnxruntime==1.32.0")),
    "mlflow": ("MLflow", ("numpy", "pandas", "mlflow-skinny==3.17.2")),
    "sklearn": ("scikit-learn", ("scikit-learn==1.9.1", "skops==0.16.0")),
}
"""For each format its heading in the page, and the packages to install for it."""
_WRITE_SKOPS = f"""
import sys
from dpca.registry import Registry
Registry.open(sys.argv[1]).export("{NAME}@champion", "census-map.skops", format="sklearn")
"""


def subspaces() -> dict[str, PrivateSubspace]:
    """Return a subspace around the origin without feature names, and one around a mean with feature names."""
    stream = np.random.default_rng(0)
    basis = np.linalg.qr(stream.normal(size=(30, 5)))[0].T
    facts = {"mechanism": "analyze_gauss", "privacy": {"epsilon": 1.0, "delta": 1e-6}}
    names = [f"column {at}" for at in range(30)]
    return {
        "around zero": PrivateSubspace(components=basis, manifest=facts),
        "around a mean": PrivateSubspace(
            components=basis, mean=10.0 * stream.normal(size=30), manifest={**facts, "feature_names": names}
        ),
    }


def blocks(heading: str) -> list[str]:
    """Return the Python blocks under a heading of the page export.md."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"{PAGE.name} has no section {heading}"
    return re.findall(r"^```python\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


def publish(home: Path, subspace: PrivateSubspace) -> None:
    """Publish a subspace under the name that the page uses, in a separate home."""
    pointer = Pointer(name=NAME, versions={1: write_artifact(subspace, home=home)}, aliases={"champion": 1})
    path = home / Pointer.path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(pointer.encode())


def install(folder: Path, packages: Sequence[str]) -> Path:
    """Create an environment with these packages, and return the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *packages], check=True)
    return python


def run(command: Sequence[Any], *, cwd: Path, **variables: str) -> str:
    """Run a program with few environment variables, and return its output."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(command, cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_engine(engine: str, python: Path, work: Path, subspace: PrivateSubspace) -> float:
    """Use an exported subspace in another library as the page describes; return the largest difference of scores."""
    heading, _ = ENGINES[engine]
    home, folder = work / "home", work / engine
    folder.mkdir()
    rows = 5.0 * np.random.default_rng(1).normal(size=(50, subspace.n_features))
    np.save(folder / "rows.npy", rows)
    (folder / "names.json").write_text(json.dumps(subspace.feature_names))
    registry = Registry.open(home)
    if engine == "sklearn":
        run([python, "-c", _WRITE_SKOPS, home], cwd=folder)
    else:
        output = folder / {"onnx": "census-map.onnx", "mlflow": "census-map-mlflow"}[engine]
        registry.export(f"{NAME}@champion", output, format=engine)
    code = folder / f"{engine}.py"
    code.write_text("\n".join(blocks(heading)))
    variables = {"MLFLOW_TRACKING_URI": f"file:{folder}/runs", "MLFLOW_ALLOW_FILE_STORE": "true"}
    found: dict[str, Any] = json.loads(run([python, HERE / "child.py", code, folder], cwd=folder, **variables))
    digest = registry.resolve(NAME).digest
    assert found["dtype"] == "float64"
    assert found["lineage"]["dpca.artifact"] == f"{NAME}@1"
    assert found["lineage"]["dpca.digest"] == f"sha256:{digest}"
    if engine == "mlflow":
        assert found["registered"]["dpca.epsilon"] == "1.0"
        assert (found["refused"] is not None) == (subspace.feature_names is not None)
    return float(np.abs(np.array(found["scores"]) - subspace.transform(rows)).max())


def check_page(page: Path, work: Path, subspace: PrivateSubspace) -> float:
    """Run the JavaScript page; return the largest difference between its scores and those of this package."""
    rows = 5.0 * np.random.default_rng(1).normal(size=(50, subspace.n_features))
    text = "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    with serve_folder(work / "home") as server:
        command = ["node", HERE / "run_page.mjs", page, f"{server.url}/registry", f"{NAME}@champion", text]
        shown = json.loads(run(command, cwd=page))
        server.answers = {"components/c/0/0": flipped}
        damaged = json.loads(run(command, cwd=page))
    assert "analyze_gauss; epsilon 1, delta 0.000001" in shown["facts"], shown
    assert "not what was published" in damaged["facts"]
    assert damaged["scores"] == ""
    scores = np.array([[float(cell) for cell in line.split(",")] for line in shown["scores"].splitlines()])
    return float(np.abs(scores - subspace.transform(rows)).max())


def main() -> int:
    """Check every library and the page, print the results, and return 1 if scores differ by more than 1e-6."""
    far, cases = 0.0, subspaces()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.chdir(ROOT)
        wheel = hatchling.build.build_wheel(str(root))
        for case, subspace in cases.items():
            publish(root / case / "home", subspace)
        for engine, (heading, packages) in ENGINES.items():
            python = install(root / "environment", packages)
            if engine == "sklearn":
                pip: list[Any] = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
                subprocess.run([*pip, root / wheel], check=True)
            for case, subspace in cases.items():
                found = check_engine(engine, python, root / case, subspace)
                far = max(far, found)
                print(f"{heading}, {case}: scores within {found:.1e} of ours", flush=True)
            shutil.rmtree(root / "environment")
        page = root / "page"
        shutil.copytree(BROWSER, page, ignore=shutil.ignore_patterns("node_modules"))
        subprocess.run(["npm", "ci", "--silent"], cwd=page, check=True, stdout=subprocess.DEVNULL)
        for case, subspace in cases.items():
            found = check_page(page, root / case, subspace)
            far = max(far, found)
            print(f"JavaScript, {case}: scores within {found:.1e} of ours, a flipped bit refused")
    return 0 if far <= WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
