"""The options of an ingest are declared once: command, flow, form and storage follow from one record."""

import dataclasses
import inspect
import json
import typing
from typing import Any

import pytest
import typer

from flows.cli import build_app
from flows.ingest import ingest_dataset, ingest_source
from flows.orchestration.option_parameters import with_options
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import DEFAULTS, IngestOptions, Meaning, options_of
from storage.datasets.kept_sources import FILES
from storage.errors import Invalid

OPTIONS = options_of(IngestOptions)
NAMES = [option.name for option in OPTIONS]
STORED_DEPLOYMENTS = {
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
    "max_rows_per_unit": None,
    "scale": None,
    "on_error": "fail",
    "resume": False,
    "allow_shared_rows": False,
    "header": None,
}
"""Parameters that deployments pass by name, with the defaults that they rely on."""


def _command() -> Any:
    root: Any = typer.main.get_command(build_app())
    return root.commands["dataset"].commands["ingest"]


def test_parameters_that_deployments_pass_keep_name_and_default() -> None:
    declared = {option.name: option.default for option in OPTIONS}
    assert STORED_DEPLOYMENTS.items() <= declared.items()


def test_the_flow_takes_each_option_and_its_form_shows_the_same_text_and_bounds() -> None:
    parameters = inspect.signature(ingest_dataset.fn).parameters
    assert list(parameters) == ["source", "name", *NAMES]
    shown = ingest_dataset.parameters.properties
    for option in OPTIONS:
        assert parameters[option.name].default == option.default
        assert shown[option.name]["description"] == option.meaning.help
        assert shown[option.name].get("minimum") == option.meaning.minimum
        assert shown[option.name].get("maximum") == option.meaning.maximum
        assert tuple(shown[option.name].get("enum", ())) == option.meaning.choices


def test_the_command_takes_each_option_and_shows_the_same_text_and_bounds() -> None:
    taken = {parameter.name: parameter for parameter in _command().params}
    assert [name for name in taken if name in NAMES] == NAMES
    assert taken.keys() - NAMES == {"source", "name", "direct", "as_json"}
    for option in OPTIONS:
        parameter = taken[option.name]
        assert parameter.opts == [f"--{option.name.replace('_', '-')}"]
        assert (parameter.help, parameter.default) == (option.meaning.help, option.default)
        assert parameter.min == option.meaning.minimum
        assert parameter.max == option.meaning.maximum


def test_storage_and_stage_take_the_record_and_no_option_beside_it() -> None:
    for function in (ingest, ingest_source):
        parameters = inspect.signature(function).parameters
        assert parameters["options"].annotation is IngestOptions
        assert not parameters.keys() & set(NAMES)


def test_options_are_plain_json_values() -> None:
    options = IngestOptions(features=3, columns={"row": "user"}, header=False, density=0.5, on_error="quarantine")
    assert IngestOptions(**json.loads(json.dumps(dataclasses.asdict(options)))) == options


def test_options_that_name_files_are_kept_from_the_orchestrator() -> None:
    assert FILES == ("source", "feature_names", "units", "scale")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_refuses_what_lies_outside_its_domain(option: Any) -> None:
    meaning: Meaning = option.meaning
    outside: list[Any] = [bound for bound in (meaning.minimum,) if bound is not None]
    outside = [bound - 1 for bound in outside] + [meaning.maximum + 1 for _ in (1,) if meaning.maximum is not None]
    outside += [float("nan")] if meaning.maximum is not None else []
    outside += ["another"] if meaning.choices else []
    for value in outside:
        with pytest.raises(Invalid, match=f"^{option.name}=.*; "):
            IngestOptions(**{option.name: value})
    assert dataclasses.replace(DEFAULTS, **{option.name: option.default}) == DEFAULTS


def test_added_parameters_come_before_the_keyword_only_ones_of_the_function() -> None:
    def job(source: str, *, direct: bool = False, **options: Any) -> str:
        return f"{source} {direct} {options['features']}"

    declared = with_options(IngestOptions, annotation=lambda option: option.kind)(job)
    assert list(inspect.signature(declared).parameters) == ["source", *NAMES, "direct"]
    assert typing.get_type_hints(declared)["features"] == int | None
    assert typing.get_type_hints(declared)["return"] is str
    assert declared("rows", direct=True, features=3) == "rows True 3"
