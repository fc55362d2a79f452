"""Checks of installed packages: missing extras, and other modules that hide the pipeline's packages.

Without extras, the distribution ``dpca-pipeline`` installs only the dependencies that a consumer needs. So a command or
a public name may need a package that is not installed. The pipeline's packages are named ``flows``, ``storage`` and
``dpca_tasks``. A file of such a name in the working folder would hide the package, because Python finds the file first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from dpca.errors import NotInstalled

OURS = ("dpca_tasks", "flows", "storage")
"""The packages of the pipeline."""

_EXTRAS = {
    **dict.fromkeys(
        ("dask", "distributed", "fastapi", "jinja2", "packaging", "prefect", "starlette", "uvicorn"), "pipeline"
    ),
    **dict.fromkeys(("anndata", "h5py"), "anndata"),
    "duckdb": "units",
    "matplotlib": "plots",
    "obstore": "s3",
    "psycopg": "postgres",
    "skops": "sklearn",
    "sklearn": "estimators",
}
"""For each package that only parts of the pipeline need, the smallest extra that installs it."""


def check_not_hidden() -> None:
    """Check that no other module hides a package of the pipeline.

    Raises
    ------
    NotInstalled
        If Python finds another package or file of the same name first. The message names this file.
    """
    ours = Path(__file__).resolve().parent.parent
    for name in OURS:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            continue
        place = spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if place is None or not Path(place).resolve().is_relative_to(ours / name):
            raise NotInstalled(
                f"{place} hides the package {name!r} of dpca-pipeline, because Python finds it first; rename it, or "
                "run from another folder"
            )


def missing_package(error: ImportError, *, what: str, extra: str = "local") -> NotInstalled:
    """Return an error whose message names the missing package and the extra that installs it.

    ``what`` names the feature that needs the package. ``extra`` is the extra to name if the package has no entry in
    `_EXTRAS`.
    """
    package = (error.name or "a package").partition(".")[0]
    if package in OURS:
        return NotInstalled(f"{what} needs the package {package!r}, which is damaged; install dpca-pipeline again")
    extra = _EXTRAS.get(package, extra)
    return NotInstalled(f"{what} needs {package}, which is not installed; install dpca-pipeline[{extra}]")


@contextmanager
def needing(what: str, *, extra: str = "local") -> Iterator[None]:
    """Within this context, convert a failed import of an optional package into the error of `missing_package`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(error, what=what, extra=extra) from None
