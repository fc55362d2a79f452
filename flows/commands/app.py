"""Format of the help texts of all commands.

Commands and options are listed in named groups. The first sentence of a command is never cut off. A last line refers
to the glossary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMAND_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Data and budgets": ("dataset", "schema", "budget", "mechanism", "demo"),
    "Releases": ("subspace", "moment", "completion", "tensor", "stream", "sites", "site"),
    "Published results": ("registry", "transform", "recommend", "derive", "serve", "pages"),
    "Operation": ("doctor", "audit", "ledger", "backup"),
}
"""The nouns of ``dpca --help``, in groups."""
OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Release": ("publish", "components", "rank", "model", "mechanism", "settings", "releases", "run_key", "slot"),
    "Privacy": (
        *("epsilon", "delta", "clip_norm", "row_policy", "center", "relation", "unit", "rows_per_unit"),
        *("hold_if_rejected", "allow_large_delta", "allow_not_private", "i_know_this_is_not_private"),
    ),
    "Quality": (
        *("rounds", "like", "like_public", "maps", "refine", "schema_constraints", "keep_matrix", "require_share"),
        *("spectrum", "on_noise"),
    ),
    "Source": (
        *("name", "population", "public", "features", "feature_names", "public_items", "table_schema", "format"),
        *("columns", "duplicates", "keep_zeros", "delimiter", "header", "scale", "density", "block_nnz", "dtype"),
        *("on_error", "records_at_most", "unit_column", "units", "unit_name", "max_rows_per_unit", "allow_shared_rows"),
    ),
    "Promotion": ("alias", "drift_at_most", "settled"),
    "Run": ("workers", "direct", "dry_run", "unattended", "resume", "yes", "as_json"),
}
"""The parameter names of the options in each group. All other options are in the group ``Options``."""
GROUPED_FROM = 16
"""A command with at least this number of options shows its options in groups."""
TERMS = "Terms such as epsilon, record and clip norm are explained in the glossary (docs/reference/glossary.md)."


class HelpfulCommand(TyperCommand):
    """A command whose help shows its options in groups if there are many."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options in their groups."""
        records: dict[str, list[tuple[str, str]]] = {}
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        many = len(options) >= GROUPED_FROM
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                is_option = param.param_type_name == "option"
                group = _group_of(str(param.name), many=many) if is_option else "Arguments"
                records.setdefault(group, []).append(record)
        for group in ("Arguments", *OPTION_GROUPS, "Options"):
            if group in records:
                with formatter.section(group):
                    formatter.write_dl(records[group])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write a pointer to the glossary if the command has privacy options."""
        super().format_epilog(ctx, formatter)
        if any(param.name in ("epsilon", "clip_norm") for param in self.params):
            formatter.write_paragraph()
            formatter.write_text(TERMS)


class HelpfulGroup(TyperGroup):
    """A group of commands whose help shows the complete first sentence of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, in named groups at the top level."""
        named = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = {name: _first_sentence(one.help or "") for name, one in named.items() if one and not one.hidden}
        groups = COMMAND_GROUPS if set(rows) == {name for group in COMMAND_GROUPS.values() for name in group} else {}
        for group, names in (groups or {"Commands": tuple(rows)}).items():
            with formatter.section(group):
                formatter.write_dl([(name, rows[name]) for name in names])


class App(typer.Typer):
    """The commands of one noun, with the help format of this module."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": HelpfulGroup, "rich_markup_mode": None, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Declare a command, as Typer does."""
        return super().command(name, **{"cls": HelpfulCommand, **options})


def _group_of(name: str, *, many: bool) -> str:
    if not many:
        return "Options"
    return next((group for group, names in OPTION_GROUPS.items() if name in names), "Options")


def _first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
