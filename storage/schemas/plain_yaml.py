"""Read YAML that is a plain document: no key twice, nothing shared, no object of a programming language."""

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

from storage.errors import Invalid

_INTEGERS = 1 << 63
_LONGEST_INTEGER = 100  # characters, in any notation


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses what a reader of the file would not see."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise Invalid(f"{self._here()} repeats a part by reference (*); write it out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as the base has it
        keys = [key.value for key, _ in node.value]
        if len(set(map(str, keys))) < len(keys):
            raise Invalid(f"line {node.start_mark.line + 1} begins a mapping with one key twice; drop one")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> Any:
        is_long = len(node.value) > _LONGEST_INTEGER  # of base 60, its time would grow with the square of the length
        if is_long or not -_INTEGERS <= super().construct_yaml_int(node) < _INTEGERS:
            raise Invalid(f"line {node.start_mark.line + 1} holds an integer of more than 64 bits; correct it")
        return super().construct_yaml_int(node)

    def _here(self) -> str:
        return f"line {self.peek_event().start_mark.line + 1}"


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(  # YAML 1.1 takes 1e6 for text
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """Return the document of a YAML text; JSON is YAML too.

    Raises
    ------
    Invalid
        If it is no plain document.
    """
    try:
        return yaml.load(text, _Loader)
    except Invalid:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" near line {mark.line + 1}"
        raise Invalid(f"the text is no YAML{where}; check indentation, colons and quotes") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, OverflowError):
        raise Invalid("the text is no YAML; check indentation, colons and quotes") from None
