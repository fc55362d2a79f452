"""Prefect deployments, the consumer's lock file, and the files published with the wheel.

- Each flow has a deployment, its parameters are a form, and no schedule is active by default.
- A consumer needs only the packages of the consumer's lock file, for a registry in a folder, on the web or in a store.
- The wheel has a bill of materials and licenses, and two builds give the same wheel.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.utils import canonicalize_name
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid, validate

from dpca.backends.local import open_place
from tests.consumer.__main__ import ROOT, TAMPERED, make_subspace, published, refusals, use
from tests.deployments.lock import CONSUMER, consumer_lock, entries
from tests.deployments.manifests import FOLDER, Tree, read
from tests.deployments.materials import PARTS, Bill, bills, build_wheel, check, copy_sources, licences, not_permitted
from tests.s3 import Server

PROCESS, KUBERNETES = read("prefect.yaml"), read("prefect.kubernetes.yaml")
DEPLOYMENTS = {found["entrypoint"]: found for found in PROCESS["deployments"]}


def _flow(entrypoint: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Flow)
    return found


def _schema(entrypoint: str) -> Tree:
    return parameter_schema(_flow(entrypoint).fn).model_dump_for_openapi()


def test_every_flow_has_one_deployment() -> None:
    modules = [
        importlib.import_module(found.name) for found in pkgutil.walk_packages([str(FOLDER.parent / "flows")], "flows.")
    ]
    known = {
        f"{thing.fn.__module__}.{thing.fn.__name__}"
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, Flow)
    }
    assert known == set(DEPLOYMENTS)
    assert len(PROCESS["deployments"]) == len(DEPLOYMENTS)


@pytest.mark.parametrize("entrypoint", sorted(DEPLOYMENTS))
def test_a_deployment_is_described_tagged_scheduled_but_inactive_and_runs_once_at_a_time(entrypoint: str) -> None:
    found = DEPLOYMENTS[entrypoint]
    assert found["description"]
    assert "dpca" in found["tags"]
    # tags are words such as a kind of job, never the name of a population
    assert all(tag.isalpha() for tag in found["tags"])
    (schedule,) = found["schedules"]
    assert (schedule["active"], schedule["timezone"], len(schedule["cron"].split())) == (False, "UTC", 5)
    assert found["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert found["work_pool"]["name"] == "dpca"


@pytest.mark.parametrize("entrypoint", sorted(DEPLOYMENTS))
def test_the_form_explains_every_parameter_and_accepts_the_shipped_values(entrypoint: str) -> None:
    schema = _schema(entrypoint)
    for name, rule in schema["properties"].items():
        assert rule.get("description", "").endswith("."), f"{name} has no help text"
    validate(DEPLOYMENTS[entrypoint]["parameters"], schema, raise_on_error=True)
    assert set(DEPLOYMENTS[entrypoint]["parameters"]) <= set(schema["properties"])


@pytest.mark.parametrize("entrypoint", sorted(DEPLOYMENTS))
def test_no_form_offers_options_that_void_a_budget(entrypoint: str) -> None:
    offered = list(_offered(_schema(entrypoint)))
    words = ("not_private", "allow", "accept", "insist", "force", "yes", "overwrite", "restored", "relation")
    assert not [name for name in offered if any(word in name for word in words)]
    assert not {"non_private", "als", "ials", "otd"} & set(offered)


def _offered(schema: Any) -> Iterator[str]:
    """Yield all field names of a form, and all values that the form offers, from its JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (str(word) for word in schema.get("enum", ()))
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _offered(part)


def test_older_deployments_may_pass_options_that_forms_no_longer_offer() -> None:
    taken = inspect.signature(_flow("flows.jobs.fit_subspace").fn).parameters
    assert {"allow_large_delta", "settings", "run_key"} <= set(taken)
    assert "allow_shared_rows" in inspect.signature(_flow("flows.jobs.ingest_dataset").fn).parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"epsilon": "much"},
        {"delta": 1},
        {"delta": -1e-9},
        {"components": 0},
        {"components": 1.5},
        {"publish": "Not A Name"},
        {"mechanism": "guesswork"},
        {"center": "public"},
        {"workers": 0},
        {"mechanism": "non_private"},
        {"settings": {"dp_spca": {"steps": 0}}},
        {"settings": {"dp_spca": {"rate": 1.5}}},
        {"settings": {"dp_spca": {"calibration": "loose"}}},
        {"settings": {"analyze_gauss": {"steps": 5}}},
        {"settings": {"exponential": {"allow_uncertified": True}}},
    ],
    ids=str,
)
def test_the_form_refuses_what_the_flow_would_refuse(wrong: Tree) -> None:
    entrypoint = "flows.jobs.fit_subspace"
    schema, parameters = _schema(entrypoint), DEPLOYMENTS[entrypoint]["parameters"]
    assert is_valid(parameters, schema)
    assert not is_valid(parameters | wrong, schema)


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"dp_spca": {"steps": 5, "mu": 0.5}}, {"dp_spca": None}, {"steps": "5"}],
    ids=str,
)
def test_the_form_accepts_typed_settings_and_older_text(settings: Any) -> None:
    entrypoint = "flows.jobs.fit_subspace"
    assert is_valid(DEPLOYMENTS[entrypoint]["parameters"] | {"settings": settings}, _schema(entrypoint))


def test_the_variant_on_kubernetes_differs_in_the_pool_alone() -> None:
    pool = {"name": "dpca-kubernetes", "work_queue_name": "default"}
    image = {"image": "{{ $DPCA_IMAGE }}", "namespace": "dpca"}
    expected = [found | {"work_pool": pool | {"job_variables": image}} for found in PROCESS["deployments"]]
    assert KUBERNETES["deployments"] == expected
    assert KUBERNETES["pull"] == []
    template = json.loads((FOLDER / "work-pool.json").read_text())
    assert set(image) <= set(template["variables"]["properties"])


LOCKED = set(entries(CONSUMER))
UNWANTED = {"prefect", "dask", "distributed", "sqlalchemy", "alembic", "duckdb", "numba", "llvmlite", "pyarrow"}


def allowed() -> set[str]:
    """Return the import names of the distributions in the consumer's lock, and ``dpca``."""
    found = packages_distributions()
    return {"dpca"} | {
        package for package, owners in found.items() if LOCKED & {canonicalize_name(owner) for owner in owners}
    }


def test_the_consumers_lock_is_the_required_part_of_the_full_lock() -> None:
    assert CONSUMER.read_text(encoding="utf-8") == consumer_lock()
    assert not LOCKED & UNWANTED


def test_the_lock_names_no_host_and_every_version_carries_a_hash() -> None:
    text = CONSUMER.read_text(encoding="utf-8")
    assert not re.search(r"://|--index|file:", text)
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries(CONSUMER).values())


type Reached = tuple[dict[str, str], dict[str, str]]
"""The addresses of an artifact by the kind of place, and the variables by which they are reached."""


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory, s3_server: Server) -> Iterator[Reached]:
    """Publish an artifact in a folder, on a web server and in an object store.

    Yield the addresses, and the environment variables with which a consumer reaches them.
    """
    with published(tmp_path_factory.mktemp("consumer"), s3_server) as (addresses, variables):
        yield addresses, {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables}


@pytest.mark.parametrize("kind", ["folder", "https", "s3"])
def test_a_consumer_imports_only_locked_packages_and_the_client_of_its_store(reached: Reached, kind: str) -> None:
    addresses, environment = reached
    found = use(sys.executable, addresses[kind], environment, "--only", ",".join(sorted(allowed())))
    scores = make_subspace().transform(np.linspace(-1.0, 1.0, 100).reshape(2, -1))
    # the tolerance is needed because the summation order varies by processor
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-12)
    assert found["imported"] == ["dpca"]
    clients = {"folder": set(), "https": {"httpx"}, "s3": {"obstore"}}
    assert {"httpx", "obstore"} & set(found["used"]) == clients[kind]


@pytest.mark.parametrize("kind", ["https", "s3"])
def test_tampered_registries_are_refused_with_only_the_locked_packages(
    tmp_path: Path, s3_server: Server, kind: str
) -> None:
    with published(tmp_path, s3_server) as (addresses, variables), pytest.MonkeyPatch.context() as patch:
        s3_server.enter(patch)
        environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **variables}
        place = open_place(addresses["s3" if kind == "s3" else "folder"])
        assert use(sys.executable, addresses[kind], environment)["artifact"] == "news@1"
        lines = refusals(sys.executable, addresses[kind], place, environment)
        assert {what: bool(line) and "\n" not in line for what, line in lines.items()} == dict.fromkeys(TAMPERED, True)


def test_the_import_check_detects_an_unlocked_package(reached: Reached) -> None:
    addresses, environment = reached
    with pytest.raises(AssertionError, match="No module named 'httpcore'"):
        use(sys.executable, addresses["https"], environment, "--only", ",".join(sorted(allowed() - {"httpcore"})))


@pytest.fixture(scope="module")
def made() -> dict[str, Bill]:
    return bills()


@pytest.mark.parametrize("part", PARTS)
def test_bill_names_every_locked_distribution_with_its_hashes_and_nothing_else(
    made: dict[str, Bill], part: str
) -> None:
    locked, found = entries(PARTS[part]), made[part]["components"]
    assert sorted(licences(made[part])) == sorted(
        name for name in locked if "sys_platform == 'win32'" not in locked[name]
    )
    for component in found:
        hashes = [
            each["content"] for reference in component["externalReferences"] for each in reference.get("hashes", [])
        ]
        entry = locked[component["name"].lower().replace("_", "-").replace(".", "-")]
        assert hashes
        assert all(f"sha256:{digest}" in entry for digest in hashes)
        assert f"=={component['version']}" in entry


def test_every_installed_distribution_has_a_permitted_licence(made: dict[str, Bill]) -> None:
    assert not_permitted(licences(made["image"]) | licences(made["consumer"])) == {}


def test_a_license_that_is_not_permitted_is_detected() -> None:
    assert not_permitted({"a": "MIT", "b": "GPL-3.0-only", "c": "MIT AND AGPL-3.0-only", "d": ""}) == {
        "b": "GPL-3.0-only",
        "c": "MIT AND AGPL-3.0-only",
        "d": "",
    }


@pytest.mark.audit_only
def test_bill_is_valid_by_the_schema(made: dict[str, Bill]) -> None:
    """Validate the smaller of the two bills of materials; `make sbom` validates both."""
    check(made["consumer"])
    with pytest.raises(ValueError, match="specVersion"):
        check({**made["consumer"], "specVersion": 7})


def test_two_builders_make_the_same_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_wheel(copy_sources(tmp_path / "one"), tmp_path)
    bytes_of_first = first.read_bytes()
    other = copy_sources(tmp_path / "elsewhere" / "two")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    for name, value in {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7", "LC_ALL": "C", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (into := tmp_path / "out").mkdir()
    assert build_wheel(other, into).read_bytes() == bytes_of_first
