"""The pages of the site by their addresses, each as HTML and as JSON; nothing here knows of a network.

==============================  ======================================================================
Address                         Page
==============================  ======================================================================
index                           every name and every budget
names/NAME                      the versions of a name, and the history of its aliases
versions/NAME@N                 one version: verdict, spectrum, loadings, lineage
differences/NAME@N/NAME@M       what changed from one version to another
budgets/POPULATION              what was spent, what is left, and what runs to come may get
datasets                        the curator's list of datasets, where that is asked for
==============================  ======================================================================

An address ends in ``.html`` or ``.json``. Beside them are the stylesheet, and below ``charts`` those of versions and
budgets, light and dark. A page that cannot be made is
a page too, with one sentence that holds no path, no stored text and no number.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from flows.reports.logs import log_event
from flows.reports.terminal import json_text
from flows.web.differences import difference_facts
from flows.web.drawing import draw_burn_down, draw_loadings, draw_scree
from flows.web.listing import name_facts, overview_facts
from flows.web.page_facts import Absent, address_of, budget_page, dataset_facts, noun_of, version_facts
from storage.errors import Corrupt, Invalid, NotFound, Refused, Unavailable
from storage.registry.references import NAME_PATTERN, VERSION_PATTERN
from storage.workspace import Workspace

HTML, JSON, CSS = "text/html; charset=utf-8", "application/json", "text/css; charset=utf-8"
SVG = "image/svg+xml"
STYLE = "static/style.css"
_VERSION = rf"{NAME_PATTERN}@{VERSION_PATTERN}"
_DOCTOR = "The operator finds the reason with dpca doctor on the machine of the ledger."
_TROUBLES: tuple[tuple[type[Exception], str, str], ...] = (
    (NotFound, "Nothing of that name is here.", "Go back to the overview, which lists all there is."),
    (
        Corrupt,
        "What is stored for this page is damaged: it is not what was published, so nothing of it is shown.",
        "The operator restores those files from a copy; dpca registry verify names them.",
    ),
    (Refused, "The ledger is locked, and shows nothing until an operator has unlocked it.", _DOCTOR),
    (Invalid, "What is stored for this page is of a version of dpca that this one cannot read.", _DOCTOR),
    (Unavailable, "The storage cannot be read at the moment.", _DOCTOR),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One file of the site, or the page that says why there is none."""

    status: int
    content: bytes
    media: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All pages of the workspace of this process, read anew for each answer.

    Parameters
    ----------
    live : bool
        Whether it is served, so that forms are answered; a static site has none.
    curator : bool
        Show the page of datasets too.
    open_workspace : callable
        Returns the workspace, opened to read.
    undrawn : collection of str
        Versions, such as ``news@3``, whose pages have no charts, but the same numbers in tables.
    """

    live: bool
    curator: bool = False
    open_workspace: Callable[[], Workspace] = Workspace.read_only
    undrawn: Collection[str] = ()

    def answer(self, path: str) -> Answer:
        """Return the file at an address, such as ``names/news.html``; the empty one is the index. It never raises."""
        path = path or "index.html"
        if path == STYLE:
            return Answer(status=200, content=style(), media=CSS)
        try:
            for pattern, draw in _CHARTS:
                if found := re.fullmatch(rf"charts/{pattern}-(light|dark)\.svg", path):
                    *about, theme = found.groups()
                    return Answer(status=200, content=draw(self.open_workspace(), *about, theme=theme), media=SVG)
            template, facts = self.facts(path)
            return self.page(path, template, facts)
        except Absent as absent:
            return self.trouble(path, status=404, text=str(absent))
        except Exception as error:  # noqa: BLE001 - its text may hold a path, so it stays here
            log_event("page_failed", page=path[:200], kind=type(error).__name__)
            for kind, text, then in _TROUBLES:
                if isinstance(error, kind):
                    return self.trouble(path, status=404 if kind is NotFound else 503, text=text, then=then)
            return self.trouble(path, status=500, text="This page failed here.", then=_DOCTOR)

    def trouble(self, path: str, *, status: int, text: str, then: str = "The overview lists all there is.") -> Answer:
        """Return a page that says in one sentence why there is no other, and in one what to do."""
        return self.page(path, "trouble", {"status": status, "text": text, "then": then}, status=status)

    def page(self, path: str, template: str, facts: Mapping[str, Any], *, status: int = 200) -> Answer:
        """Return the file at an address, made of facts."""
        if path.endswith(".json"):
            return Answer(status=status, content=json_text({"page": template, **facts}).encode() + b"\n", media=JSON)
        page = path.rpartition("/")[2].removesuffix(".html")
        about = {"root": "../" * path.count("/"), "live": self.live, "curator": self.curator, "page": page}
        return Answer(status=status, content=render(template, facts, **about), media=HTML)

    def facts(self, path: str) -> tuple[str, Mapping[str, Any]]:
        """Return the template of a page and its facts, or raise `Absent`."""
        for pattern, make in _PAGES:
            if found := re.fullmatch(rf"{pattern}\.(?:html|json)", path):
                return make(self, *found.groups())
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
    ("budgets/(~?[a-z0-9][a-z0-9._-]{0,99})/burn-down", draw_burn_down),
)


def style() -> bytes:
    """Return the one stylesheet."""
    return (files("flows.web") / STYLE).read_bytes()


_NONE = "–"


def render(template: str, facts: Mapping[str, Any], **about: Any) -> bytes:
    """Write a page: ``facts`` are those of its JSON, ``about`` where it stands in the site."""
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
    made.filters |= {"number": number, "percent": percent, "date": date, "day": day, "words": words}
    made.filters |= {"address": address_of, "noun": noun_of}
    made.globals["version"] = version("dpca-pipeline")
    return made


def number(value: float | None) -> str:
    """Write a number in six digits at most; a whole one with its thousands apart."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _NONE
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    text = f"{value:,.1f}" if 1e4 <= abs(value) < 1e15 else f"{value:.6g}"
    return text.replace("-", "−", 1) if value < 0 else text


def percent(value: float | None) -> str:
    """Write a part of one in percent."""
    return _NONE if value is None else f"{100.0 * value:.1f} %"


def date(text: str | None) -> str:
    """Write a stored time to the minute."""
    return _NONE if not text else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


def day(text: str | None) -> str:
    """Write the day of a stored time."""
    return date(text)[:10]


def words(name: str) -> str:
    """Write the name of a fact as words."""
    return name.replace("_", " ")
