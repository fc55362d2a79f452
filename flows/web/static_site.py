"""The same pages as files: links are relative, so that they work from a folder and under any address."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from flows.web.listing import aliases_in, populations_in, versions_in
from flows.web.page_facts import address_of
from flows.web.pages import STYLE, Site
from storage.backends.atomic_files import write_folder
from storage.database.engine import reading
from storage.errors import Corrupt, Invalid, Unavailable
from storage.workspace import Workspace

DRAWN = 100
"""Of so many of the newest versions of a name, charts are drawn; they take most of the time."""


def build_site(output: Path, *, tell: Callable[[int, int | None], None]) -> int:
    """Write every page of this process's workspace to a new folder; return the number of pages.

    Parameters
    ----------
    output : Path
        It appears whole or not at all. The page of datasets is not written. Charts are drawn of the newest `DRAWN`
        versions of each name and of those with an alias; pages of older ones have the same numbers in tables.
    tell : callable
        Is called with the files written, and with all there will be.

    Raises
    ------
    Invalid
        When something stands there, or its folder does not exist.
    Corrupt
        When a page cannot be made; the text names it.
    Unavailable
        When it cannot be written.
    """
    output = output.absolute()
    if output.exists() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a new folder in an existing one; name another.")
    workspace = Workspace.read_only()
    site = Site(live=False, open_workspace=lambda: workspace, undrawn=_undrawn(workspace))
    pages = [*_pages(workspace)]
    files: dict[str, bytes] = {}
    for page in pages:
        files |= _page(site, page)
        for chart in set(re.findall(r'"(?:\.\./)*(charts/[^"]+\.svg)"', files[f"{page}.html"].decode())):
            files[chart] = _content(site, chart)
        tell(len(files), None)
    files[STYLE] = _content(site, STYLE)
    try:
        write_folder(output, files)
    except OSError as error:
        raise Unavailable(
            f"output {output} cannot be written ({error.strerror}); nothing was; choose another place."
        ) from error
    return len(pages)


def _page(site: Site, page: str) -> dict[str, bytes]:
    """Return a page as HTML and as JSON, from facts that are read once."""
    try:
        template, facts = site.facts(f"{page}.html")
        return {path: site.page(path, template, facts).content for path in (f"{page}.html", f"{page}.json")}
    except Exception as error:
        raise _failed(page) from error


def _content(site: Site, path: str) -> bytes:
    answer = site.answer(path)
    if answer.status != 200:
        raise _failed(path)
    return answer.content


def _failed(path: str) -> Corrupt:
    return Corrupt(
        f"page {path} cannot be made, and a site is written whole or not at all; `dpca doctor` and `dpca registry "
        "verify` find the reason."
    )


def _undrawn(workspace: Workspace) -> set[str]:
    """Return the versions that get no charts: all but the newest of each name, and those with an alias."""
    with reading(workspace.ledger.engine) as connection:
        rows, aliases = versions_in(connection), aliases_in(connection)
    newest: dict[str, int] = {row.name: row.version for row in rows}
    old = (row for row in rows if row.version <= newest[row.name] - DRAWN)
    return {row.reference for row in old if (row.name, row.version) not in aliases}


def _pages(workspace: Workspace) -> Iterator[str]:
    """Yield the address of each page, without its ending; of differences those that pages link to."""
    yield "index"
    with reading(workspace.ledger.engine) as connection:
        rows, aliases = versions_in(connection), aliases_in(connection)
        populations = populations_in(connection)
    numbered: dict[str, list[int]] = {}
    for row in rows:
        numbered.setdefault(row.name, []).append(row.version)
    for name, versions in numbered.items():
        yield f"names/{name}"
        yield from (f"versions/{name}@{version}" for version in versions)
        marked = {version for (other, version) in aliases if other == name}
        pairs = {*pairwise(versions), *((at, versions[-1]) for at in marked if at != versions[-1])}
        yield from (f"differences/{name}@{left}/{name}@{right}" for left, right in sorted(pairs))
    yield from (f"budgets/{address_of(population)}" for population in populations)
