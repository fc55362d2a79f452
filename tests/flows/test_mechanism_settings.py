"""Settings of mechanisms in forms: they have the types and bounds of the mechanism's fields."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dpca.errors import Invalid
from dpca_tasks.errors import DpcaError
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.mechanisms.registered import settings_of
from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from flows.families.base import build_mechanism
from flows.families.completion import COMPLETION
from flows.families.subspace import SUBSPACE
from flows.families.tensors import TENSORS
from flows.options import NOT_OFFERED, text_settings
from flows.requests import CompletionRequest, SitesRequest, SubspaceRequest, TensorRequest
from storage.options import options_of

FAMILIES: dict[str, Any] = {"subspace": SUBSPACE, "completion": COMPLETION, "tensor": TENSORS}
PROBLEMS: dict[str, Any] = {
    "subspace": (Problem(n_features=20, clip_norm=1.0), {"n_components": 2}),
    "completion": (RatingsProblem(n_features=20, low=0.0, high=1.0, ratings_per_user=5), {"rank": 2}),
    "tensor": (TensorProblem(n_features=20, model="mixture", clip_norm=1.0), {"components": 2}),
}
COMPANIONS = {"start_share": {"start": "analyze_gauss"}, "mu": {"form": "one_row", "calibration": "paper"}}
"""Other settings that a setting requires to have an effect."""


def _parts(record: type[Any]) -> dict[str, dict[str, Any]]:
    (settings,) = (option for option in options_of(record) if option.name == "settings")
    assert settings.handling.form is not None
    _, shown = settings.handling.form()["anyOf"]
    assert shown["additionalProperties"] == {"type": "string"}
    found: dict[str, dict[str, Any]] = {}
    for name, choice in shown["properties"].items():
        none, part = choice["anyOf"]
        assert (none, part["title"], part["additionalProperties"]) == ({"type": "null"}, name, False)
        found[name] = part["properties"]
    return found


PARTS = {
    "subspace": _parts(SubspaceRequest),
    "completion": _parts(CompletionRequest),
    "tensor": _parts(TensorRequest),
}
ALL = [(family, name) for family, parts in PARTS.items() for name in parts]


def test_every_setting_has_a_type_a_help_text_and_its_own_default() -> None:
    shown = [*PARTS.items(), ("sites", _parts(SitesRequest))]
    kinds: dict[str, Mapping[str, type[Any]]] = {name: family.mechanisms for name, family in FAMILIES.items()}
    kinds["sites"] = {**METHODS, **TENSOR_METHODS}
    seen = set()
    for family, parts in shown:
        for name, kind in kinds[family].items():
            options = {option.name: option for option in settings_of(kind) if option.name not in NOT_OFFERED}
            assert parts.get(name, {}).keys() == options.keys(), name
            for key, rule in parts.get(name, {}).items():
                assert rule["description"].endswith(".")
                assert rule["type"] in ("integer", "number", "boolean", "string")
                assert rule.get("default") == options[key].default
                assert ("enum" in rule) is (rule["type"] == "string")
                seen.add(key)
    assert seen


def test_no_form_offers_settings_that_weaken_a_guarantee() -> None:
    assert not [key for parts in PARTS.values() for rules in parts.values() for key in rules if "allow" in key]
    for family, parts in PARTS.items():
        assert not parts.keys() & FAMILIES[family].references.keys()


@pytest.mark.parametrize(("family", "name"), ALL)
def test_a_form_with_default_values_gives_the_default_mechanism(family: str, name: str) -> None:
    _, fixed = PROBLEMS[family]
    defaults = {key: rule.get("default") for key, rule in PARTS[family][name].items()}
    settings = text_settings({name: defaults, "another": {}, "none": None}, of=name)
    plain = build_mechanism(FAMILIES[family], name, {}, **fixed)
    assert build_mechanism(FAMILIES[family], name, settings, **fixed) == plain


def _outside(rule: Mapping[str, Any]) -> Iterator[Any]:
    whole = rule["type"] == "integer"
    if "minimum" in rule:
        yield rule["minimum"] - (1 if whole else 0.5)
    if "maximum" in rule:
        yield rule["maximum"] + (1 if whole else 0.5)
    yield from (rule[bound] for bound in ("exclusiveMinimum", "exclusiveMaximum") if bound in rule)
    if "enum" in rule:
        yield "another"


@pytest.mark.parametrize(("family", "name"), ALL)
def test_the_mechanism_refuses_everything_that_the_form_refuses(family: str, name: str) -> None:
    problem, fixed = PROBLEMS[family]
    target = PrivacyTarget(epsilon=1.0, delta=0.0 if name in ("laplace", "avn") else 1e-7)
    for key, rule in PARTS[family][name].items():
        for value in _outside(rule):
            with pytest.raises(DpcaError):
                build_mechanism(
                    FAMILIES[family],
                    name,
                    text_settings({name: {**COMPANIONS.get(key, {}), key: value}}, of=name),
                    **fixed,
                ).plan(problem, target)


def test_settings_of_another_mechanism_are_refused_unless_empty() -> None:
    requested: dict[str, Any] = {
        "dataset": "d",
        "components": 2,
        "epsilon": 1.0,
        "delta": 1e-6,
        "clip_norm": 1.0,
        "publish": "p",
    }
    given: dict[str, Any] = {"dp_spca": {"steps": 50, "mu": None}, "noisy_power": {"iterations": None}, "dps_pca": None}
    assert SubspaceRequest(**requested, mechanism="dp_spca", settings=given).settings == {"steps": "50"}
    for mechanism in ("noisy_power", "auto"):
        with pytest.raises(Invalid, match=f"settings of dp_spca are given, but the mechanism is {mechanism}"):
            SubspaceRequest(**requested, mechanism=mechanism, settings=given)
    assert SubspaceRequest(**requested, settings={"form": "dense"}).settings == {"form": "dense"}
