"""What each page must pass in a browser: no error, the keyboard alone, the rules of axe, and no scrolling sideways."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize

NARROW, WIDE = ViewportSize(width=320, height=640), ViewportSize(width=1000, height=760)
_MOST_STOPS = 60
_FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const all = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), summary, [tabindex="0"]')];
  return {name: at.tagName, order: all.indexOf(at), outline: style.outlineStyle, width: parseFloat(style.outlineWidth),
          seen: box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight};
}"""


class Failed(Exception):
    """A page does not pass."""


@contextmanager
def clean_page(
    browser: Browser, *, scheme: Literal["light", "dark"] = "light", narrow: bool = False, state: Any = None
) -> Iterator[Page]:
    """Yield a page in which any error of the console, any failed and any foreign request fails the check."""
    size = NARROW if narrow else WIDE
    context = browser.new_context(viewport=size, color_scheme=scheme, storage_state=state, reduced_motion="reduce")
    page, wrong = context.new_page(), []
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"{request.url} failed"))
    try:
        yield page
        if wrong:
            raise Failed(f"{page.url}: {wrong[0]}")
    finally:
        context.close()


def log_in(browser: Browser, address: str, token: str) -> Any:
    """Show the token in the form, by keyboard alone; return the cookies."""
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(address)
    page.focus("#token")
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text('What is released')")
    state = context.storage_state()
    context.close()
    return state


def passes_axe(page: Page) -> int:
    """Hold a page against the rules of axe, with every table of it open; return how many rules it passes."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = Axe().run(page, options={"resultTypes": ["violations", "passes"]}).response
    for violation in found["violations"]:
        where = violation["nodes"][0]
        raise Failed(f"{page.url}: {violation['id']}: {where['target']} {where['failureSummary']}")
    return len(found["passes"])


def fits_narrow(page: Page) -> None:
    """Check that a page of 320 pixels does not scroll sideways."""
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > NARROW["width"]:
        raise Failed(f"{page.url} is {width} pixels wide on a screen of {NARROW['width']}")


def works_by_keyboard(page: Page) -> int:
    """Go through a page with the keyboard: skip link, order, visible focus, details; return the stops made."""
    page.keyboard.press("Tab")
    first = page.evaluate(_FOCUSED)
    if first["order"] != 0 or not first["seen"] or page.evaluate("document.activeElement.className") != "skip":
        raise Failed(f"{page.url}: the first stop is no visible skip link ({first})")
    page.keyboard.press("Enter")
    if page.evaluate("document.activeElement.id") != "content":
        raise Failed(f"{page.url}: the skip link does not lead to the content")
    last, stops = 0, 1
    while stops < _MOST_STOPS:
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at["name"] == "BODY" or at["order"] == 0:
            break  # past the last, and perhaps around
        if at["order"] <= last or not at["seen"] or at["outline"] == "none" or not at["width"] >= 2:
            raise Failed(f"{page.url}: stop {stops} is out of order, out of sight or not outlined ({at})")
        last, stops = at["order"], stops + 1
        if at["name"] == "SUMMARY":
            before = page.evaluate("document.activeElement.parentElement.open")
            page.keyboard.press("Enter")
            if page.evaluate("document.activeElement.parentElement.open") == before:
                raise Failed(f"{page.url}: a summary does not open by keyboard")
            page.keyboard.press("Enter")
    return stops


def pictures_are_drawn(page: Page) -> int:
    """Check that each picture of a page is there; return how many there are."""
    sizes = page.evaluate("[...document.images].map(each => each.complete ? each.naturalWidth : 0)")
    if not all(sizes):
        raise Failed(f"{page.url}: a chart is not drawn")
    return len(sizes)
