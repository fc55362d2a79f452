"""Pages from facts: templates without logic of their own, and the formats of numbers and dates."""

import math
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from flows.web.budgets import address_of
from flows.web.versions import noun_of

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
