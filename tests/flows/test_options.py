"""Options of an ingest and of a fit: each is declared once, and command, flow, form and storage follow from it.

Options that a command and a flow share have one name and one declaration, with equal text and bounds. Settings of
mechanisms in forms have the types and bounds of the mechanism's fields.
"""

import dataclasses
import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from prefect import Flow, flow
from pydantic import Field
from typer.testing import CliRunner

from dpca.errors import Invalid
from dpca.registry.pointers import NAME_PATTERN
from dpca_tasks.errors import DpcaError
from dpca_tasks.mechanisms.base import Center, PrivacyTarget, Problem
from dpca_tasks.mechanisms.completion.ratings import RatingsProblem
from dpca_tasks.mechanisms.registered import settings_of
from dpca_tasks.mechanisms.sites import METHODS, TENSOR_METHODS
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.records.blocks import RowPolicy
from flows.cli import build_app
from flows.families.base import build_mechanism
from flows.families.completion import COMPLETION
from flows.families.subspace import SUBSPACE
from flows.families.tensors import TENSORS
from flows.ingest import ingest_source
from flows.jobs import fit_subspace, ingest_dataset
from flows.options import NOT_OFFERED, Workers, command_option, form_field, text_settings, with_options
from flows.requests import (
    MECHANISM,
    NOT_IN_FORMS,
    CompletionRequest,
    Request,
    SitesRequest,
    SubspaceRequest,
    TensorRequest,
)
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.datasets.kept_sources import FILES
from storage.options import Handling, OptionField, option_record, options_of

OPTIONS = options_of(IngestOptions)
NAMES = [option.name for option in OPTIONS]
REQUIRED = inspect.Parameter.empty
STORED_INGESTS = {
    "population": None,
    "features": None,
    "records_at_most": None,
    "density": None,
    "block_nnz": None,
    "dtype": None,
    "format": None,
    "columns": None,
    "feature_names": None,
    "public_items": False,
    "unit_column": None,
    "units": None,
    "unit_name": None,
    "max_rows_per_unit": None,
    "scale": None,
    "on_error": None,
    "unattended": False,
    "resume": False,
    "allow_shared_rows": False,
    "header": None,
}
STORED_FITS = {
    "dataset": REQUIRED,
    "components": REQUIRED,
    "epsilon": REQUIRED,
    "delta": REQUIRED,
    "clip_norm": REQUIRED,
    "publish": REQUIRED,
    "mechanism": "analyze_gauss",
    "settings": None,
    "run_key": None,
    "workers": None,
    "allow_large_delta": False,
    "row_policy": "clip",
    "center": "none",
}
"""Parameters that deployments pass by name, with the defaults that they rely on."""


@dataclass(frozen=True, kw_only=True)
class Derived:
    """An option record, and the flow, the command and the stored form that are derived from it."""

    record: type[Any]
    flow: Any
    command: tuple[str, str]
    nearby: set[str]
    """Parameters of the command that no field declares."""
    stored: Mapping[str, Any]
    unasked: tuple[str, ...] = ()
    """Options that no form offers."""


INGEST = Derived(
    record=IngestOptions,
    flow=ingest_dataset,
    command=("dataset", "ingest"),
    nearby={"source", "name", "direct", "as_json"},
    stored=STORED_INGESTS,
)
FIT = Derived(
    record=SubspaceRequest,
    flow=fit_subspace,
    command=("subspace", "fit"),
    nearby={"workers", "direct", "dry_run", "yes", "as_json"},
    stored=STORED_FITS,
    unasked=NOT_IN_FORMS,
)
derived = pytest.mark.parametrize("derived", [INGEST, FIT], ids=["ingest", "fit"])


@option_record
class TurnRequest(Request):
    """A request of a made-up family of releases."""

    family = "turn"

    turns: Annotated[int, Field(description="Number of turns.", ge=1)]
    mechanism: Annotated[str, Field(description=MECHANISM), Handling(choices=("spin", "twist"))] = "spin"


@flow(name="turn", persist_result=False)
@with_options(TurnRequest, annotation=form_field)
def turn_in_flow(*, workers: Workers = None, **request: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(TurnRequest(**request)), "workers": workers}


def turn_app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options(TurnRequest, annotation=command_option, omitted_is_none=True)
    def turn(*, yes: bool = False, **request: Any) -> None:
        typer.echo(json.dumps({**dataclasses.asdict(TurnRequest(**request)), "yes": yes}))

    return app


TURN: dict[str, Any] = {"dataset": "people", "publish": "turned", "epsilon": 1.5, "delta": 0.0, "turns": 2}
FITTED: dict[str, Any] = {
    **{"dataset": "people", "publish": "sub", "epsilon": 1.0, "delta": 1e-6},
    **{"components": 2, "clip_norm": 1.0},
}
TURN_WORDS = ("people", "--publish", "turned", "--epsilon", "1.5", "--delta", "0", "--turns", "2")


@derived
def test_parameters_that_deployments_pass_keep_name_and_default(derived: Derived) -> None:
    parameters = inspect.signature(derived.flow.fn).parameters
    assert derived.stored.items() <= {name: parameter.default for name, parameter in parameters.items()}.items()


@derived
def test_the_flow_takes_each_option_and_its_form_shows_the_same_text_and_bounds(derived: Derived) -> None:
    options = [option for option in options_of(derived.record) if option.name not in derived.unasked]
    parameters = inspect.signature(derived.flow.fn).parameters
    nearby = {"source", "name", "workers", "dry_run"} & set(parameters)
    assert set(parameters) == {option.name for option in options} | nearby
    schema = derived.flow.parameters
    offered = [option for option in options if option.handling.is_offered]
    assert set(schema.properties) == {option.name for option in offered} | nearby
    for option in offered:
        shown, bounds, form = schema.properties[option.name], option.bounds, option.handling.form
        assert (option.name in schema.required) is option.is_required
        assert parameters[option.name].default == (REQUIRED if option.is_required else option.default)
        assert shown["description"] == option.help
        assert shown.get("minimum") == bounds.get("ge")
        assert shown.get("maximum") == bounds.get("le")
        assert shown.get("exclusiveMinimum") == bounds.get("gt")
        assert shown.get("exclusiveMaximum") == bounds.get("lt")
        assert shown.get("minLength") == bounds.get("min_length")
        assert shown.get("pattern") == bounds.get("pattern")
        in_place = {} if form is None else form()
        assert {**shown, **in_place} == shown
        assert tuple(shown.get("enum", ())) == tuple(in_place.get("enum", option.words))


@derived
def test_the_command_takes_each_option_and_shows_the_same_text_and_bounds(derived: Derived) -> None:
    noun, verb = derived.command
    root: Any = typer.main.get_command(build_app())
    taken = {parameter.name: parameter for parameter in root.commands[noun].commands[verb].params}
    options = options_of(derived.record)
    names = [option.name for option in options]
    assert [name for name in taken if name in names] == names
    assert taken.keys() - names == derived.nearby
    for option in options:
        parameter, bounds = taken[option.name], option.bounds
        assert parameter.opts == [option.name if option.handling.is_argument else f"--{option.name.replace('_', '-')}"]
        assert parameter.help == option.help
        assert parameter.required is (option.is_required and not option.may_be_none)
        assert parameter.default == (None if option.is_required else option.default)
        is_open = option.kind == int | str or "gt" in bounds or "lt" in bounds
        assert parameter.min == (None if is_open else bounds.get("ge"))
        assert parameter.max == (None if is_open else bounds.get("le"))


def test_storage_and_stage_take_the_options_as_one_record() -> None:
    for function in (ingest, ingest_source):
        parameters = inspect.signature(function).parameters
        assert parameters["options"].annotation is IngestOptions
        assert not parameters.keys() & set(NAMES)


def test_options_are_plain_json_values() -> None:
    options = IngestOptions(features=3, columns={"row": "user"}, header=False, density=0.5, on_error="quarantine")
    assert IngestOptions(**json.loads(json.dumps(dataclasses.asdict(options)))) == options


def test_options_that_name_files_are_kept_from_the_orchestrator() -> None:
    assert FILES == ("source", "feature_names", "table_schema", "units", "scale")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_refuses_what_lies_outside_its_domain(option: OptionField) -> None:
    for value in outside(option):
        with pytest.raises(Invalid, match=f"^{option.name}=.*; "):
            IngestOptions(**{option.name: value})
    assert dataclasses.replace(DEFAULTS, **{option.name: option.default}) == DEFAULTS


@pytest.mark.parametrize("option", options_of(SubspaceRequest), ids=lambda option: option.name)
def test_each_domain_of_a_request_refuses_what_lies_outside_and_admits_its_default(option: OptionField) -> None:
    for value in outside(option):
        with pytest.raises(Invalid, match=f"^{option.name}=.*; "):
            SubspaceRequest(**{**FITTED, option.name: value})
    if not option.is_required:
        assert SubspaceRequest(**{**FITTED, option.name: option.default}) == SubspaceRequest(**FITTED)


def outside(option: OptionField) -> list[Any]:
    """Return invalid values of an option, one for each rule that the option declares."""
    bounds, values = option.bounds, list[Any]()
    values += [bounds["ge"] - 1] if "ge" in bounds else []
    values += [bounds["le"] + 1, float("nan")] if "le" in bounds else []
    values += [bounds[bound] for bound in ("gt", "lt") if bound in bounds]
    values += ["a" * (bounds["min_length"] - 1)] if "min_length" in bounds else []
    values += ["Not A Name"] if "pattern" in bounds else []
    return values + (["another"] if option.words else [])


def test_the_choices_of_a_request_are_those_of_the_core() -> None:
    words = {option.name: option.words for option in options_of(SubspaceRequest)}
    assert words["mechanism"] == ("auto", *sorted({**SUBSPACE.mechanisms, **SUBSPACE.references}))
    assert words["row_policy"] == typing.get_args(RowPolicy)
    assert words["center"] == typing.get_args(Center)


def test_a_name_to_publish_under_is_one_of_the_registry() -> None:
    (publish,) = (option for option in options_of(SubspaceRequest) if option.name == "publish")
    assert publish.bounds["pattern"] == f"^{NAME_PATTERN}$"


def test_added_parameters_come_before_the_keyword_only_ones_of_the_function() -> None:
    def job(source: str, *, direct: bool = False, **options: Any) -> str:
        return f"{source} {direct} {options['features']}"

    declared = with_options(IngestOptions, annotation=lambda option: option.kind)(job)
    assert list(inspect.signature(declared).parameters) == ["source", *NAMES, "direct"]
    assert typing.get_type_hints(declared)["features"] == int | None
    assert typing.get_type_hints(declared)["return"] is str
    assert declared("rows", direct=True, features=3) == "rows True 3"


@pytest.mark.parametrize(
    ("given", "settings"), [(None, {}), ({}, {}), ([], {}), ([("a", "1")], {"a": "1"}), ({"a": "1"}, {"a": "1"})]
)
def test_settings_in_any_accepted_form_become_a_mapping(given: Any, settings: Mapping[str, str]) -> None:
    assert TurnRequest(**TURN, settings=given).settings == settings


@pytest.mark.usefixtures("prefect")
def test_the_request_of_another_family_makes_its_flow() -> None:
    requested = {**TURN, "mechanism": "twist", "settings": {"speed": "3"}}
    expected = dataclasses.asdict(TurnRequest(**requested))
    assert turn_in_flow(**requested, workers=2) == {**expected, "workers": 2}
    assert turn_in_flow(**TURN) == {**dataclasses.asdict(TurnRequest(**TURN)), "workers": None}
    shown = turn_in_flow.parameters.properties["mechanism"]
    assert (shown["enum"], shown["default"]) == (["spin", "twist"], "spin")


def test_the_request_of_another_family_makes_its_command() -> None:
    called = CliRunner().invoke(turn_app(), [*TURN_WORDS, "--settings", "speed=3", "--settings", "note=a=b", "--yes"])
    requested = TurnRequest(**TURN, settings={"speed": "3", "note": "a=b"})
    assert json.loads(called.output) == {**dataclasses.asdict(requested), "yes": True}
    least = CliRunner().invoke(turn_app(), ["people", "--publish", "turned", "--turns", "1"])
    assert (json.loads(least.output)["epsilon"], json.loads(least.output)["settings"]) == (None, {})


@pytest.mark.parametrize(
    "words",
    [
        ("people", "--publish", "turned"),
        (*TURN_WORDS, "--turns", "0"),
        (*TURN_WORDS, "--epsilon", "much"),
        (*TURN_WORDS, "--settings", "lonely"),
        (*TURN_WORDS, "--settings", "a=1", "--settings", "a=2"),
        TURN_WORDS[1:],
    ],
    ids=" ".join,
)
def test_the_command_of_another_family_refuses_wrong_usage(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(turn_app(), list(words)).exit_code == 2


ROOT = Path(__file__).parents[2]
COMMAND_OF = {
    "ingest-dataset": ("dataset", "ingest"),
    "fit-subspace": ("subspace", "fit"),
    "evaluate-subspace": ("subspace", "evaluate"),
    "refresh-subspace": ("subspace", "refresh"),
    "complete": ("completion", "fit"),
    "evaluate-completion": ("completion", "evaluate"),
    "decompose": ("tensor", "fit"),
    "fit-moment": ("moment", "fit"),
    "fit-sites": ("sites", "fit"),
    "tick-stream": ("stream", "tick"),
}
OF_COMMANDS_ALONE = {"direct", "yes", "as_json", "buys", "i_know_this_is_not_private"}
"""Options that only apply to a person at a terminal."""
ON_ONE_SIDE = {("refresh-subspace", "dry_run"), ("fit-sites", "dry_run")}
"""Options that only a flow or only its command has."""
DECLARED_TWICE = {("ingest-dataset", "source"), ("refresh-subspace", "inbox")}
"""Paths are private: a flow takes a reference instead of a path, with another help text."""


def _flows() -> dict[str, Flow[..., Any]]:
    modules = [importlib.import_module(f"flows.{found.name}") for found in pkgutil.iter_modules([str(ROOT / "flows")])]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Flow)]
    return {one.name: one for one in found}


def _commands() -> dict[tuple[str, ...], Any]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "commands"):
            yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))

    return dict(walk(typer.main.get_command(build_app()), ()))


def _differences(job: Flow[..., Any], command: Any) -> list[str]:
    """Return a line for each option whose name or declaration differs between a flow and its command."""
    found = []
    shown = job.parameters.properties
    taken = {parameter.name: parameter for parameter in command.params}
    for name, parameter in taken.items():
        flag = name if parameter.param_type_name == "argument" else f"--{name.replace('_', '-')}"
        if name not in OF_COMMANDS_ALONE and flag not in parameter.opts:
            found.append(f"{name} is spelled {parameter.opts}")
        in_flow = {*inspect.signature(job.fn).parameters, *OF_COMMANDS_ALONE}
        if name not in in_flow and (job.name, name) not in ON_ONE_SIDE:
            found.append(f"{name} is no parameter of the flow")
    for name, rules in shown.items():
        if name not in taken and (job.name, name) not in ON_ONE_SIDE:
            found.append(f"{name} is no option of the command")
        if name not in taken or (job.name, name) in DECLARED_TWICE:
            continue
        if rules.get("description") != taken[name].help:
            found.append(f"{name} has two texts")
        bounds = {"minimum": taken[name].min, "maximum": taken[name].max}
        if any(bound is not None and rules.get(rule) != bound for rule, bound in bounds.items()):
            found.append(f"{name} has two domains")
    return found


FLOWS, COMMANDS = _flows(), _commands()


def test_every_flow_has_a_command() -> None:
    assert FLOWS.keys() == COMMAND_OF.keys()


@pytest.mark.parametrize("name", COMMAND_OF)
def test_an_option_of_a_flow_and_its_command_has_one_name_and_one_declaration(name: str) -> None:
    assert _differences(FLOWS[name], COMMANDS[COMMAND_OF[name]]) == []


def _planted(workers: Any) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(with_options(annotation=command_option)(workers))
    return typer.main.get_command(app)


@flow(name="planted")
@with_options(annotation=form_field)
def _job(*, workers: Workers = None, table: str | None = None) -> None: ...


def test_a_flag_of_another_name_is_found() -> None:
    def job(*, workers: Workers = None, table: Annotated[str | None, typer.Option("--sheet")] = None) -> None: ...

    assert _differences(_job, _planted(job)) == ["table is spelled ['--sheet']"]


def test_a_parameter_of_another_name_is_found() -> None:
    def job(*, workers: Workers = None, sheet: str | None = None) -> None: ...

    assert _differences(_job, _planted(job)) == [
        "sheet is no parameter of the flow",
        "table is no option of the command",
    ]


def test_a_second_declaration_is_found() -> None:
    def job(
        *,
        workers: Annotated[int | None, typer.Option(min=2, help="Processes.")] = None,
        table: str | None = None,
    ) -> None: ...

    assert _differences(_job, _planted(job)) == ["workers has two texts", "workers has two domains"]


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
