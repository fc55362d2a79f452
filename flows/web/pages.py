"""Pages of the site by address, served or written as files.

Each page exists as HTML and as JSON. This module does not use the network.

==============================  ======================================================================
Address                         Page
==============================  ======================================================================
index                           every name and every budget
names/NAME                      the versions of a name, and the history of its aliases
versions/NAME@N                 verdict, spectrum, loadings and lineage of one version
differences/NAME@N/NAME@M       the differences from one version to another
budgets/POPULATION              what is spent and left, and the epsilon of each of several future runs
datasets                        the curator's list of datasets, if it is enabled
==============================  ======================================================================

An address ends in ``.html`` or ``.json``. The address of a page with a main list may also end in ``.csv``. A served
page takes ``?find=TEXT&order=COLUMN``, which filters and sorts its main list. The site also contains the stylesheet
and, below ``charts``, the charts of versions and budgets, light and dark. If a page cannot be made, an error page is
returned. Its text contains no path, no stored text and no number.

All links are relative, so that pages written as files work from a folder and under any address.

>>> rows = {"names": [{"name": "map", "versions": 2}, {"name": "base", "versions": 9}]}
>>> [row["name"] for row in arranged("overview", rows, find="", order="-versions")["names"]]
['base', 'map']
>>> csv_of("overview", rows).splitlines()[1]
'map,2'
"""

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpca.backends.atomic_files import write_folder
from dpca.errors import Corrupt, Invalid, NotFound, Refused, Unavailable
from dpca.registry.pointers import NAME_PATTERN, VERSION_PATTERN
from flows.reports.budget_facts import populations_in
from flows.reports.release_page import formatted, label, meaning, rounded_down
from flows.reports.terminal import json_text, log_event
from flows.web.differences import difference_facts, draw_burn_down, draw_derived, draw_loadings, draw_scree
from flows.web.listing import aliases_in, name_facts, overview_facts, versions_in
from flows.web.page_facts import Absent, address_of, budget_page, dataset_facts, noun_of, version_facts
from storage.database.engine import reading
from storage.workspace import Workspace

HTML, JSON, CSS = "text/html; charset=utf-8", "application/json", "text/css; charset=utf-8"
CSV = "text/csv; charset=utf-8"
SVG = "image/svg+xml"
STYLE = "static/style.css"
LISTS: Mapping[str, str] = {"overview": "names", "name": "versions", "budget": "releases", "datasets": "datasets"}
"""For each template of a page with a main list, the name of the fact that is the list."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run text with these beginnings as a formula
_VERSION = rf"{NAME_PATTERN}@{VERSION_PATTERN}"
_DOCTOR = "The operator finds the reason with dpca doctor on the ledger's machine."
_TROUBLES: tuple[tuple[type[Exception], str, str], ...] = (
    (NotFound, "This site has nothing with that name.", "Go back to the overview, which lists everything."),
    (
        Corrupt,
        "The stored data of this page are damaged: they differ from the published data, so the page is not shown.",
        "The operator restores the files from a copy; dpca registry verify names them.",
    ),
    (Refused, "The ledger is locked, and shows nothing until an operator unlocks it.", _DOCTOR),
    (Invalid, "The stored data of this page belong to a version of dpca that this server cannot read.", _DOCTOR),
    (Unavailable, "The storage cannot be read at the moment.", _DOCTOR),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One file of the site, or an error page that states why the file cannot be returned."""

    status: int
    content: bytes
    media: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All pages of this process's workspace; the workspace is read again for each request.

    Parameters
    ----------
    live : bool
        True for a served site, which has forms; False for a static site, which has none.
    curator : bool
        Whether to show the page of datasets too.
    open_workspace : callable
        Returns the workspace, opened read-only.
    undrawn : collection of str
        Versions, such as ``news@3``, whose pages have tables of numbers but no charts.
    """

    live: bool
    curator: bool = False
    open_workspace: Callable[[], Workspace] = Workspace.read_only
    undrawn: Collection[str] = ()

    def answer(self, path: str, *, find: str = "", order: str = "") -> Answer:
        """Return the file at an address, such as ``names/news.html``; the empty address is the index.

        An error is never raised: an error page is returned instead. ``find`` and ``order`` filter and sort the main
        list of a page, as in `arranged`.
        """
        path = path or "index.html"
        if path == STYLE:
            return Answer(status=200, content=style(), media=CSS)
        try:
            for pattern, draw in _CHARTS:
                if found := re.fullmatch(rf"charts/{pattern}-(light|dark)\.svg", path):
                    *about, theme = found.groups()
                    return Answer(status=200, content=draw(self.open_workspace(), *about, theme=theme), media=SVG)
            template, facts = self.facts(path)
            return self.page(path, template, facts, find=find, order=order)
        except Absent as absent:
            return self.trouble(path, status=404, text=str(absent))
        except Exception as error:  # noqa: BLE001 - its text may contain a path, so it is not shown
            log_event("page_failed", page=path[:200], kind=type(error).__name__)
            for kind, text, then in _TROUBLES:
                if isinstance(error, kind):
                    return self.trouble(path, status=404 if kind is NotFound else 503, text=text, then=then)
            return self.trouble(path, status=500, text="The server failed at this page.", then=_DOCTOR)

    def trouble(self, path: str, *, status: int, text: str, then: str = "The overview lists everything.") -> Answer:
        """Return an error page: ``text`` states the reason, and ``then`` what the reader can do."""
        return self.page(path, "trouble", {"status": status, "text": text, "then": then}, status=status)

    def page(
        self, path: str, template: str, facts: Mapping[str, Any], *, status: int = 200, find: str = "", order: str = ""
    ) -> Answer:
        """Render facts as the file at an address: HTML, JSON or CSV, by the end of the address."""
        shown = arranged(template, facts, find=find, order=order) if find or order else facts
        if path.endswith(".csv") and template in LISTS:
            return Answer(status=status, content=csv_of(template, shown).encode(), media=CSV)
        if path.endswith(".json"):
            return Answer(status=status, content=json_text({"page": template, **shown}).encode() + b"\n", media=JSON)
        page = path.rpartition("/")[2].removesuffix(".html")
        about = {"root": "../" * path.count("/"), "live": self.live, "curator": self.curator, "page": page}
        about |= {"find": find, "order": order, "columns": columns_of(template, facts)}
        return Answer(status=status, content=render(template, shown, **about), media=HTML)

    def facts(self, path: str) -> tuple[str, Mapping[str, Any]]:
        """Return the template of a page and its facts; raise `Absent` if the address has no page."""
        for pattern, make in _PAGES:
            if found := re.fullmatch(rf"{pattern}\.(?:html|json|csv)", path):
                template, facts = make(self, *found.groups())
                if not path.endswith(".csv") or template in LISTS:
                    return template, facts
        raise Absent("There is no page at this address.")

    def _overview(self) -> tuple[str, Mapping[str, Any]]:
        return "overview", overview_facts(self.open_workspace())

    def _name(self, name: str) -> tuple[str, Mapping[str, Any]]:
        facts = name_facts(self.open_workspace(), name)
        if not facts["versions"]:
            raise Absent(f"Nothing is published under the name {name}.")
        return "name", facts

    def _version(self, name: str, version: str) -> tuple[str, Mapping[str, Any]]:
        facts = version_facts(self.open_workspace(), name, int(version))
        if facts["artifact"] in self.undrawn:
            facts["charts"] = dict.fromkeys(facts["charts"])
        return "version", facts

    def _difference(self, left: str, right: str) -> tuple[str, Mapping[str, Any]]:
        return "difference", difference_facts(self.open_workspace(), left, right)

    def _budget(self, address: str) -> tuple[str, Mapping[str, Any]]:
        return "budget", budget_page(self.open_workspace(), address)

    def _datasets(self) -> tuple[str, Mapping[str, Any]]:
        if not self.curator:
            raise Absent("There is no page at this address.")
        return "datasets", dataset_facts(self.open_workspace())


_PAGES: tuple[tuple[str, Callable[..., tuple[str, Mapping[str, Any]]]], ...] = (
    ("index", Site._overview),
    (f"names/({NAME_PATTERN})", Site._name),
    (f"versions/({NAME_PATTERN})@({VERSION_PATTERN})", Site._version),
    (f"differences/({_VERSION})/({_VERSION})", Site._difference),
    ("budgets/(~?[a-z0-9][a-z0-9._-]{0,99})", Site._budget),
    ("datasets", Site._datasets),
)


_CHARTS: tuple[tuple[str, Callable[..., bytes]], ...] = (
    (f"versions/({NAME_PATTERN})@({VERSION_PATTERN})/scree", draw_scree),
    (f"versions/({NAME_PATTERN})@({VERSION_PATTERN})/loadings", draw_loadings),
    (f"versions/({NAME_PATTERN})@({VERSION_PATTERN})/derived", draw_derived),
    ("budgets/(~?[a-z0-9][a-z0-9._-]{0,99})/burn-down", draw_burn_down),
)


def style() -> bytes:
    """Return the stylesheet of the site."""
    return (files("flows.web") / STYLE).read_bytes()


_NONE = "–"


def render(template: str, facts: Mapping[str, Any], **about: Any) -> bytes:
    """Render a page from its facts; ``about`` holds further template variables, such as the path to the site's root."""
    return _templates().get_template(f"{template}.html").render(facts=facts, **about).encode()


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("flows.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"number": number, "percent": percent, "date": date, "day": day, "words": label}
    made.filters |= {"left": left, "loading": loading, "meaning": meaning, "formatted": formatted}
    made.globals["formatted"] = formatted
    made.filters |= {"address": address_of, "noun": noun_of}
    made.globals["version"] = version("dpca-pipeline")
    return made


def number(value: float | None, digits: int = 3) -> str:
    """Write a number to three digits, because noise makes more digits meaningless.

    A whole number is written in full with separators.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _NONE
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    text = f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    return text.replace("-", "−", 1) if value < 0 else text


def left(value: float | None) -> str:
    """Write what is left of a budget, rounded down so that it is never overstated."""
    return number(value if value is None or not math.isfinite(value) else rounded_down(value, digits=3))


def loading(value: float) -> str:
    """Write a loading with two digits after the point, and with a true minus sign."""
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def percent(value: float | None) -> str:
    """Write a fraction as a percentage."""
    return _NONE if value is None else f"{100.0 * value:.1f} %"


def date(text: str | None) -> str:
    """Write a stored time to the minute."""
    return _NONE if not text else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


def day(text: str | None) -> str:
    """Write the day of a stored time."""
    return date(text)[:10]


def columns_of(template: str, facts: Mapping[str, Any]) -> list[str]:
    """Return those columns of a page's main list whose values are plain, not lists or mappings."""
    rows = _rows(template, facts)
    return [name for name in (rows[0] if rows else ()) if all(_is_plain(row.get(name)) for row in rows)]


def arranged(template: str, facts: Mapping[str, Any], *, find: str, order: str) -> dict[str, Any]:
    """Return the facts of a page, with its main list filtered by a text and sorted by a column.

    Parameters
    ----------
    find : str
        The text, matched without regard to case; an empty text matches every row.
    order : str
        A column, preceded by a minus for decreasing order; an unknown column changes nothing.
    """
    if template not in LISTS:
        return dict(facts)
    column, known = order.removeprefix("-"), columns_of(template, facts)
    pairs = [(row, _flat(row)) for row in facts[LISTS[template]]]
    found = [(row, flat) for row, flat in pairs if find.lower() in " ".join(_cells(flat)).lower()]
    if column in known:
        found.sort(key=lambda pair: _key(pair[1].get(column)), reverse=order.startswith("-"))
    return {**facts, LISTS[template]: [row for row, _ in found]}


def csv_of(template: str, facts: Mapping[str, Any]) -> str:
    """Return the main list of a page as CSV with a header.

    Text that a spreadsheet would run as a formula is preceded by a quote.
    """
    written, columns = io.StringIO(), columns_of(template, facts)
    out = csv.writer(written, lineterminator="\n")
    out.writerow(columns)
    out.writerows([_cell(row.get(name)) for name in columns] for row in _rows(template, facts))
    return written.getvalue()


def _rows(template: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the main list, with the facts of the newest version as further columns."""
    if template not in LISTS:
        return []
    return [_flat(row) for row in facts[LISTS[template]]]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    nested = {f"newest_{name}": value for name, value in (row.get("newest") or {}).items()}
    return {**row, **nested}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str)) or _is_words(value)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [str(_cell(value)) for value in row.values() if _is_plain(value)]


def _cell(value: Any) -> Any:
    if _is_words(value):
        value = " ".join(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


def _key(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key that puts numbers before texts and unknown values last."""
    value = " ".join(value) if _is_words(value) else value
    return (value is None, isinstance(value, str), 0 if value is None else value)


DRAWN = 100
"""Number of newest versions of a name for which charts are drawn; drawing takes most of the time of a static site."""


def build_site(output: Path, *, notify: Callable[[int, int | None], None]) -> int:
    """Write every page of this process's workspace to a new folder; return the number of pages.

    Parameters
    ----------
    output : Path
        The new folder, which is written whole or not at all. The page of datasets is not written. Charts are drawn for
        the newest `DRAWN` versions of each name, and for versions with an alias. The pages of other versions state the
        same numbers in tables.
    notify : callable
        Called with the number of files made so far, and with None, as their total is unknown.

    Raises
    ------
    Invalid
        If ``output`` exists, or its parent folder does not.
    Corrupt
        If a page cannot be made; the message names the page.
    Unavailable
        If ``output`` cannot be written.
    """
    output = output.absolute()
    if output.exists() or not output.parent.is_dir():
        raise Invalid(f"output {output} must be a new folder inside an existing folder; choose another path.")
    workspace = Workspace.read_only()
    site = Site(live=False, open_workspace=lambda: workspace, undrawn=_undrawn(workspace))
    pages = [*_pages(workspace)]
    files: dict[str, bytes] = {}
    for page in pages:
        files |= _page(site, page)
        for chart in set(re.findall(r'"(?:\.\./)*(charts/[^"]+\.svg)"', files[f"{page}.html"].decode())):
            files[chart] = _content(site, chart)
        notify(len(files), None)
    files[STYLE] = _content(site, STYLE)
    try:
        write_folder(output, files)
    except OSError as error:
        raise Unavailable(
            f"output {output} cannot be written ({error.strerror}); no file was written; choose another folder."
        ) from error
    return len(pages)


def _page(site: Site, page: str) -> dict[str, bytes]:
    """Return a page as HTML, as JSON and, if it has a main list, as CSV, from facts that are read once."""
    try:
        template, facts = site.facts(f"{page}.html")
        endings = ("html", "json", *(("csv",) if template in LISTS else ()))
        return {path: site.page(path, template, facts).content for path in (f"{page}.{each}" for each in endings)}
    except Exception as error:
        raise _failed(page) from error


def _content(site: Site, path: str) -> bytes:
    answer = site.answer(path)
    if answer.status != 200:
        raise _failed(path)
    return answer.content


def _failed(path: str) -> Corrupt:
    return Corrupt(
        f"page {path} cannot be written, so no page was written; `dpca doctor` and `dpca "
        "registry verify` find the reason."
    )


def _undrawn(workspace: Workspace) -> set[str]:
    """Return the versions without charts: versions without an alias that are not among the newest of their name."""
    with reading(workspace.ledger.engine) as connection:
        rows, aliases = versions_in(connection), aliases_in(connection)
    newest: dict[str, int] = {row.name: row.version for row in rows}
    old = (row for row in rows if row.version <= newest[row.name] - DRAWN)
    return {row.reference for row in old if (row.name, row.version) not in aliases}


def _pages(workspace: Workspace) -> Iterator[str]:
    """Yield the address of each page, without its suffix; differences only if another page links to them."""
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
