"""Deployments of flows: each flow has one, its parameters are a form, and no schedule runs before somebody says so."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid, validate

from tests.deployments.manifests import FOLDER, Tree, read

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
    assert all(tag.isalpha() for tag in found["tags"])  # such as a kind of job, never a population
    (schedule,) = found["schedules"]
    assert (schedule["active"], schedule["timezone"], len(schedule["cron"].split())) == (False, "UTC", 5)
    assert found["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert found["work_pool"]["name"] == "dpca"


@pytest.mark.parametrize("entrypoint", sorted(DEPLOYMENTS))
def test_the_form_explains_every_parameter_and_takes_the_shipped_ones(entrypoint: str) -> None:
    schema = _schema(entrypoint)
    for name, rule in schema["properties"].items():
        assert rule.get("description", "").endswith("."), f"{name} has no help text"
    validate(DEPLOYMENTS[entrypoint]["parameters"], schema, raise_on_error=True)
    assert set(DEPLOYMENTS[entrypoint]["parameters"]) <= set(schema["properties"])


@pytest.mark.parametrize("entrypoint", sorted(DEPLOYMENTS))
def test_no_form_offers_what_would_void_a_budget(entrypoint: str) -> None:
    offered = list(_offered(_schema(entrypoint)))
    words = ("not_private", "allow", "accept", "insist", "force", "yes", "overwrite", "restored", "relation")
    assert not [name for name in offered if any(word in name for word in words)]
    assert not {"non_private", "als", "ials", "otd"} & set(offered)


def _offered(schema: Any) -> Iterator[str]:
    """Yield the names of all that a form shows, and the words that it lets choose."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (str(word) for word in schema.get("enum", ()))
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _offered(part)


def test_what_forms_offer_no_more_is_taken_of_deployments_made_before() -> None:
    taken = inspect.signature(_flow("flows.fit.fit_subspace").fn).parameters
    assert {"allow_large_delta", "settings", "run_key"} <= set(taken)
    assert "allow_shared_rows" in inspect.signature(_flow("flows.ingest.ingest_dataset").fn).parameters


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
    entrypoint = "flows.fit.fit_subspace"
    schema, parameters = _schema(entrypoint), DEPLOYMENTS[entrypoint]["parameters"]
    assert is_valid(parameters, schema)
    assert not is_valid(parameters | wrong, schema)


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"dp_spca": {"steps": 5, "mu": 0.5}}, {"dp_spca": None}, {"steps": "5"}],
    ids=str,
)
def test_the_form_takes_typed_settings_and_text_of_before(settings: Any) -> None:
    entrypoint = "flows.fit.fit_subspace"
    assert is_valid(DEPLOYMENTS[entrypoint]["parameters"] | {"settings": settings}, _schema(entrypoint))


def test_the_variant_on_kubernetes_differs_in_the_pool_alone() -> None:
    pool = {"name": "dpca-kubernetes", "work_queue_name": "default"}
    image = {"image": "{{ $DPCA_IMAGE }}", "namespace": "dpca"}
    expected = [found | {"work_pool": pool | {"job_variables": image}} for found in PROCESS["deployments"]]
    assert KUBERNETES["deployments"] == expected
    assert KUBERNETES["pull"] == []
    template = json.loads((FOLDER / "work-pool.json").read_text())
    assert set(image) <= set(template["variables"]["properties"])
