"""Importing a package of the product loads few third-party packages, and no tool of the tests."""

import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.deployments.lock import IMAGE, WHOLE, entries
from tests.deployments.manifests import read

ROOT = Path(__file__).parent.parent
ARRAYS = "numpy scipy charset_normalizer"
SIGNATURES = "cryptography numpy"
SUMS = (
    "click cloudpickle colorama cryptography dask distributed jinja2 llvmlite locket markupsafe msgpack numba packaging"
    " psutil sortedcontainers tblib threadpoolctl tlz toolz tornado yaml zict"
)
MAY_LOAD = {
    "dpca_tasks.accounting": ARRAYS,
    "dpca_tasks": f"{ARRAYS} {SUMS}",
    "storage.trail": SIGNATURES,
    "storage.registry.reader": "numpy",
    "storage.backends": "click httpx idna obstore pygments rich",
    "storage.ledger": f"{SIGNATURES} greenlet sqlalchemy typing_extensions",
    "flows.cli": "annotated_doc shellingham typer",
}
"""For each package, the third-party top-level modules that importing all its modules may load."""

_LOAD = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    for module in pkgutil.walk_packages(getattr(importlib.import_module(name), "__path__", ()), name + "."):
        importlib.import_module(module.name)
files = {name: str(getattr(sys.modules[name], "__file__", None)) for name in set(sys.modules) - before}
tops = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
json.dump(sorted(top for top in tops if not top.startswith("_")), sys.stdout)  # with _: names inside compiled packages
"""


def loaded_by(*names: str) -> set[str]:
    """Import packages with all their modules in a new interpreter, and return the third-party top-level modules."""
    command = [sys.executable, "-W", "ignore", "-c", _LOAD, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", MAY_LOAD)
def test_a_package_loads_only_what_is_listed(package: str) -> None:
    assert loaded_by(package) - set(MAY_LOAD[package].split()) == set()


def test_deployed_flows_load_only_what_the_image_installs() -> None:
    owners, locked = packages_distributions(), set(entries(IMAGE))
    deployed = {found["entrypoint"].rpartition(".")[0] for found in read("prefect.yaml")["deployments"]}
    loaded = loaded_by(*deployed)
    assert {"prefect", "jsonschema"} <= loaded
    foreign = {top for top in loaded if not locked & {canonicalize_name(owner) for owner in owners.get(top, [])}}
    assert foreign == {"sphinx"}  # `whenever` imports it wherever it is installed, as it is for `make docs`


@pytest.mark.parametrize("module", ["rfc3987_syntax", "lark", "moto", "cyclonedx", "playwright", "kubernetes_validate"])
def test_no_tool_and_no_format_checker_is_in_the_environment(module: str) -> None:
    assert importlib.util.find_spec(module) is None


def test_tools_are_in_their_own_lock_and_not_in_the_product() -> None:
    folder = ROOT / "tests" / "tools"
    asked = re.findall(r"(?m)^[\w-]+", (folder / "requirements.in").read_text(encoding="utf-8"))
    tools, product = entries(folder / "requirements.lock"), entries(WHOLE)
    assert {canonicalize_name(name) for name in asked} <= set(tools)
    assert not {canonicalize_name(name) for name in asked} & set(product)
    assert not re.search(r"://|--index|file:", (folder / "requirements.lock").read_text(encoding="utf-8"))
    assert all("==" in entry and "--hash=sha256:" in entry for entry in tools.values())


def test_packages_of_both_environments_have_one_version() -> None:
    tools, product = entries(ROOT / "tests" / "tools" / "requirements.lock"), entries(WHOLE)
    versions = {name: (tools[name].split()[0], product[name].split()[0]) for name in set(tools) & set(product)}
    assert len(versions) > 20
    assert {name: both for name, both in versions.items() if both[0] != both[1]} == {}
