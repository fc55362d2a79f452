"""Flows that refuse unknown parameters, and the check of a deployment file before it is deployed."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml  # type: ignore[import-untyped]
from prefect import Flow
from prefect.exceptions import ParameterTypeError

from dpca.errors import Invalid, NotFound


class JobFlow[**P, T](Flow[P, T]):
    """Flow that reports an unknown parameter together with the nearest known one."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Check names first, then values as Prefect does.

        Raises
        ------
        ParameterTypeError
            When a parameter is unknown, or has a wrong type.
        """
        if text := unknown_parameters(self, parameters):
            raise ParameterTypeError(text)
        return super().validate_parameters(parameters)


def job(*, name: str) -> Callable[[Callable[..., Any]], JobFlow[..., Any]]:
    """Declare a flow that stores no result and does not log printed text."""

    def declare(function: Callable[..., Any]) -> JobFlow[..., Any]:
        return JobFlow(function, name=name, persist_result=False, log_prints=False, validate_parameters=True)

    return declare


def unknown_parameters(flow: Flow[..., Any], parameters: Mapping[str, Any]) -> str:
    """Return one line that lists the given parameters that a flow does not have; empty if there are none.

    After each of these names, the line suggests the most similar name of a parameter that the flow has.
    """
    known, taken = list(flow.parameters.properties), signature(flow.fn).parameters  # forms show only the `known` ones
    wrong = []
    for name in parameters:
        if name not in taken:
            near = get_close_matches(name, known, n=1)
            wrong.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return f"{flow.name} has no parameter {', '.join(wrong)}; its parameters are {', '.join(known)}" if wrong else ""


def check_deployments(file: str) -> dict[str, Any]:
    """Check the parameters of every deployment in a file, as the ``build`` step of ``prefect deploy``.

    Raises
    ------
    Invalid, NotFound
        Before anything is deployed, with one line that names the deployment and the parameter.
    """
    path = Path(file)
    if not path.is_file():
        raise NotFound(f"{file} is not a file; name this deployment file in its build step")
    for found in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]:
        if text := unknown_parameters(resolve_name(found["entrypoint"]), found.get("parameters") or {}):
            raise Invalid(f"deployment {found['name']}: {text}")
    return {}
