"""Options of an ingest and of a fit: each is declared once, and command, flow, form and storage follow from it."""

import dataclasses
import inspect
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from prefect import flow
from pydantic import Field
from typer.testing import CliRunner

from dpca.errors import Invalid
from dpca.registry.pointers import NAME_PATTERN
from dpca_tasks.mechanisms.base import Center
from dpca_tasks.records.blocks import RowPolicy
from flows.cli import build_app
from flows.families.subspace import SUBSPACE
from flows.ingest import ingest_source
from flows.jobs import fit_subspace, ingest_dataset
from flows.options import Workers, command_option, form_field, with_options
from flows.requests import MECHANISM, NOT_IN_FORMS, Request, SubspaceRequest
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
