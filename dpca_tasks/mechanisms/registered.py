"""Discovery of the mechanisms in a folder, and of their settings.

Each file of the folder defines one mechanism with the name of the file. Files with shared code are exceptions, which
the folder's ``__init__.py`` lists. The class of a mechanism declares everything that other modules need: the ``name``,
the settings with their bounds and help texts, and the settings for audits. A mechanism is imported when it is looked
up, so a release imports no other mechanism.

>>> from dpca_tasks.mechanisms.subspace import MECHANISMS
>>> MECHANISMS["noisy_power"].__name__
'NoisyPower'
>>> [dict(setting.bounds) for setting in settings_of(MECHANISMS["noisy_power"]) if setting.name == "iterations"]
[{'ge': 1}]
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from typing import Any, get_type_hints

NAMED_ELSEWHERE = ("n_components", "rank", "components")
"""Fields of mechanisms that are not settings, because a request has separate options for them."""
SEPARATE = {"separate": True}
"""Metadata of any other field that is not a setting, because separate options of a request determine it."""
_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?:\n\n\w[\w ]*\n-+\n|\Z)", re.MULTILINE | re.DOTALL)
_AS_OF = re.compile(r"As (?:of|for) `([\w.]+)`")


class Mechanisms(Mapping[str, type[Any]]):
    """A mapping from names to mechanism classes, which imports a mechanism when it is looked up.

    Parameters
    ----------
    package : str
        The dotted name of the folder that contains the mechanisms.
    files : mapping of str to str
        For the name of each mechanism, the name of its file without the suffix ``.py``.
    """

    def __init__(self, package: str, files: Mapping[str, str]) -> None:
        self._package, self._files = package, dict(files)

    @classmethod
    def of_folder(cls, package: str, *, besides: tuple[str, ...] = ()) -> "Mechanisms":
        """Find the mechanisms of a folder: one for each file, except the files named in ``besides``."""
        (folder,) = import_module(package).__path__
        found = sorted(module.name for module in iter_modules([folder]))
        return cls(package, {name: name for name in found if name not in besides})

    def __getitem__(self, name: str) -> type[Any]:
        """Import a mechanism by its name.

        Raises
        ------
        KeyError
            When no file has the name.
        TypeError
            When the file has no class of that name; the message names the file.
        """
        module = import_module(f"{self._package}.{self._files[name]}")
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and vars(kind).get("name") == name:
                return kind
        raise TypeError(
            f"{self.path(name)} has no class whose `name` is {name!r}; set `name` of its mechanism to the name of the "
            f"file, or list the file as shared in {Path(self.path(name)).with_name('__init__.py')}."
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the mechanisms in alphabetical order."""
        return iter(self._files)

    def __len__(self) -> int:
        """Return the number of mechanisms."""
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        """Return whether a mechanism has the name, without importing it."""
        return name in self._files

    def path(self, name: str) -> str:
        """Return the path of a mechanism's file, relative to the project."""
        return f"{self._package.replace('.', '/')}/{self._files[name]}.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a mechanism, read from the field of its class and from the class's docstring.

    Attributes
    ----------
    name : str
    hint : type or union
        The type of the value.
    default : object
        The default value, or `dataclasses.MISSING`.
    help : str
        The first sentence of the setting's entry under "Parameters" in the docstring of the class.
    bounds : mapping of str to float
        The bounds of the value, with keys ``ge``, ``gt``, ``le`` and ``lt``.
    """

    name: str
    hint: Any
    default: Any
    help: str
    bounds: Mapping[str, float]


def settings_of(kind: type[Any]) -> list[Setting]:
    """Return the settings of a mechanism, without fields for which a request has separate options.

    Raises
    ------
    TypeError
        When the docstring does not describe a setting; the message names the file.
    """
    hints = get_type_hints(kind)
    return [
        Setting(
            name=each.name,
            hint=hints[each.name],
            default=each.default if each.default_factory is MISSING else each.default_factory(),
            help=_help(kind, each.name),
            bounds=each.metadata,
        )
        for each in fields(kind)
        if each.name not in NAMED_ELSEWHERE and each.metadata != SEPARATE
    ]


def _help(kind: type[Any], name: str) -> str:
    """Return the first sentence of a setting's entry in the docstring of the class ``kind``.

    If the entry refers to another class ("As for ..."), the sentence comes from the docstring of that class.
    """
    entry = _entries(kind).get(name)
    if not entry:
        raise TypeError(f"{inspect.getfile(kind)}: the docstring of {kind.__name__} has no parameter {name!r}; add it.")
    if elsewhere := _AS_OF.match(entry):
        path = elsewhere[1] if "." in elsewhere[1] else f"{kind.__module__}.{elsewhere[1]}"
        return _help(resolve_name(path), name)
    first = re.split(r"(?<=[\w)`])\.(?:\s|$)", entry, maxsplit=1)[0]
    return f"{first.replace('`', '').rstrip('.')}."


def _entries(kind: type[Any]) -> dict[str, str]:
    """Return the text of each parameter in a class's numpydoc docstring."""
    section = _PARAMETERS.search(inspect.cleandoc(kind.__doc__ or ""))
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].split("\n") if section else ():
        if line and not line[0].isspace():
            names = line.partition(" : ")[0].split(", ")
            found |= dict.fromkeys(names, "")
        else:
            found |= {name: f"{found[name]} {line.strip()}".strip() for name in names}
    return found
