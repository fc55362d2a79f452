"""The notebooks of the documentation: run them, record their outputs, and render them as pages.

``python -m docs.gallery`` runs every notebook in a separate folder and stores the outputs in the notebook files.
"""

import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myst_parser.parsers.sphinx_ import MystParser

if TYPE_CHECKING:
    from docutils.nodes import document

NOTEBOOKS = Path(__file__).parent / "notebooks"
_PRIVATE = ("DPCA_", "PREFECT_", "XDG_")  # prefixes of variables that could redirect a notebook to other folders


class NotebookPage(MystParser):
    """A Sphinx parser that renders a notebook as Markdown, with the recorded output below each cell."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: "document") -> None:
        """Parse the text of an ``.ipynb`` file."""
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown, with the outputs of each code cell below the cell."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def run_notebook(path: Path, folder: Path) -> dict[str, Any]:
    """Run the cells of a notebook in a new process, and return the notebook with their outputs.

    ``folder`` is the process's home and working folder.

    Raises
    ------
    RuntimeError
        If a cell fails, with the error of the first such cell.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
    root = str(NOTEBOOKS.parents[1])
    own = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": root, "MPLBACKEND": "agg"}
    command = [sys.executable, "-m", "docs.gallery", str(path.absolute())]
    ended = subprocess.run(command, env=kept | own, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{path.name}: {ended.stderr}")
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(code, json.loads(ended.stdout), strict=True):
        cell["outputs"] = outputs
    return notebook


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="{"".join(data["text/plain"])}" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(data['text/plain'])}\n```"


def _run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run_cell("".join(cell["source"]), names) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the code of one cell, and return its printed text and the value of its last line if that is an expression."""
    tree, value = ast.parse(source), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    text = printed.getvalue()
    stream = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []
    shown = {} if value is None else _shown(value)
    result = [{"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": shown}]
    return stream + (result if shown else [])


def _shown(value: Any) -> dict[str, Any]:
    """Return the notebook output of a value: a picture for a figure, otherwise text and, if available, HTML."""
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=110)
        return {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": value.get_label()}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    return {"text/plain": repr(value), **({"text/html": html} if html else {})}


def main(names: list[str]) -> None:
    """Run one notebook and print its outputs as JSON; without a name, run all notebooks and store their outputs."""
    if names:
        notebook = json.loads(Path(names[0]).read_text(encoding="utf-8"))
        with contextlib.redirect_stdout(sys.stderr):
            outputs = _run_cells(notebook)
        print(json.dumps(outputs))
        return
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            made = run_notebook(path, Path(folder))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
