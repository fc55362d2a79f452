"""Checks of installed packages: missing extras, and foreign modules that hide the pipeline's packages.

The distribution ``dpca-pipeline`` installs what a consumer needs. Its extras add the rest, so a command or a public
name may need a package that is not installed. The pipeline's packages have plain names (``flows``, ``storage``,
``dpca_tasks``), which a file in the working folder may hide.
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
"""The smallest extra that installs a package, for packages that only parts of the pipeline need."""


def check_not_hidden() -> None:
    """Check that nothing hides a package of the pipeline.

    Raises
    ------
    NotInstalled
        If another package or file of that name is found first. The message names the file.
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
    """Return the error that names a missing package and the extra that installs it.

    ``what`` is the feature that needs the package. ``extra`` is the extra of that feature, used if the package has no
    entry in `_EXTRAS`.
    """
    package = (error.name or "a package").partition(".")[0]
    if package in OURS:
        return NotInstalled(f"{what} needs the package {package!r}, which is damaged; install dpca-pipeline again")
    extra = _EXTRAS.get(package, extra)
    return NotInstalled(f"{what} needs {package}, which is not installed; install dpca-pipeline[{extra}]")


@contextmanager
def needing(what: str, *, extra: str = "local") -> Iterator[None]:
    """Import optional packages within this context, and raise `missing_package` if one is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_package(error, what=what, extra=extra) from None
