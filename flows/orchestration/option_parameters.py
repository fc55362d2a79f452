"""Parameters of a function made from a record of options, so that commands and flows declare none of them again.

Examples
--------
::

    @with_options(IngestOptions, annotation=form_field)
    def ingest_dataset(source: Sources, name: NewName, **options: Any) -> str: ...

    inspect.signature(ingest_dataset)    # (source, name, *, population: str | None = None, features: ...
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from storage.options import OptionField, options_of

type Annotation = Callable[[OptionField], Any]
"""A function that gives the type of a parameter, with what its reader needs to know."""


def with_options[**P, T](
    record: type[Any], *, annotation: Annotation, omitted_is_none: bool = False, without: Collection[str] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare the ``**options`` of a function as one keyword parameter for each field of a record.

    Parameters
    ----------
    record : type
        The record of options.
    annotation : callable
        Gives the type of each parameter.
    omitted_is_none : bool
        Whether a required option that may be None is None when it is left out, as on a command line, which has no other
        word for None.
    without : collection of str
        Options that are not asked for: they keep their defaults.

    Returns
    -------
    callable
        A decorator. It changes the signature that Prefect and Typer read; a call works as before.
    """

    def declare(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        kept = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        after = [one for one in kept if one.kind is one.KEYWORD_ONLY]
        options = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(option, omitted_is_none=omitted_is_none),
                annotation=annotation(option),
            )
            for option in options_of(record)
            if option.name not in without
        ]
        parameters = [*kept[: len(kept) - len(after)], *options, *after]
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        function.__annotations__ = {one.name: one.annotation for one in parameters} | {
            "return": signature.return_annotation
        }
        return function

    return declare


def _default(option: OptionField, *, omitted_is_none: bool) -> Any:
    if not option.is_required:
        return option.default
    return None if omitted_is_none and option.may_be_none else inspect.Parameter.empty
