"""Sphinx configuration of the documentation.

The pages come from Markdown (by MyST), docstrings (by autodoc) and the help texts of the ``dpca`` command.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from docs.command_reference import reference
from docs.gallery import NotebookPage
from flows.cli import build_app

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "dpca"
copyright = "the dpca authors"  # noqa: A001 - the name that Sphinx reads
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "dpca"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_custom_sections = ["Guarantees"]


def setup(app: "Sphinx") -> None:
    """Write the page of the command reference before Sphinx reads the pages, and register the parser of notebooks."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookPage)
    page = Path(app.srcdir) / "reference" / "command.md"
    text = reference(typer.main.get_command(build_app()))
    if not page.is_file() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
