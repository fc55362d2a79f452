"""All public outputs of a world, and the differences permitted between two worlds.

`VARYING` is the complete list of values excluded from the comparison: instants, durations, ports, and values that
Prefect draws; see also `tests.two_worlds.prefect.DRAWN`.
"""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.two_worlds import prefect

if TYPE_CHECKING:
    from tests.two_worlds.world import World

VARYING: dict[str, re.Pattern[bytes]] = {
    "an instant": re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"),
    "a duration in a log": re.compile(rb'"(seconds|wait_seconds)": \d+(\.\d+)?'),
    "a duration in words": re.compile(rb"\b\d+(\.\d+)? (s|seconds|min|minutes)\b"),
    "a time of day": re.compile(rb"\b\d\d:\d\d:\d\d\.\d+\b"),
    "a name that Prefect draws": re.compile(rb"(?<=run ')[^']*(?=')"),
    "an id that Prefect draws": re.compile(rb"(?<=/flow-run/)[0-9a-f-]{36}"),
    "a port": re.compile(rb"(127\.0\.0\.1|localhost):\d{4,5}"),
    "a number of this process": re.compile(rb"\bpid[= ]\d+"),
}


def normalised(shown: dict[str, bytes]) -> dict[str, bytes]:
    """Replace each value that may vary between worlds by the name of its kind."""
    for what, pattern in VARYING.items():
        shown = {name: pattern.sub(f"<{what}>".encode(), content) for name, content in shown.items()}
    return shown


def differences(first: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return a description of every output that differs between two worlds."""
    found = []
    for name in sorted(first.keys() | other.keys()):
        ours, theirs = first.get(name), other.get(name)
        if ours != theirs:
            found.append(f"{name}: {_where(ours, theirs)}")
    return found


def collect(world: "World") -> dict[str, bytes]:
    """Return all public outputs of a world by name.

    They are the commands' outputs, the registry, the trail, the pages and the static site.
    """
    shown = dict(world.shown)
    homes = [world.home, *sorted(world.folder.glob("federation/homes/*"))]
    for home in homes:
        label = "" if home == world.home else f"{home.name} "
        shown |= {f"{label}registry {name}": content for name, content in _tree(home / "registry")}
    if os.environ.get("PREFECT_API_URL"):
        shown |= prefect.shown()
    for home in homes:
        if (home / "dpca.sqlite").exists():
            shown |= _trails(world, home)
    if (world.home / "dpca.sqlite").exists():
        shown |= _pages(world)
    return shown


def _tree(root: Path) -> list[tuple[str, bytes]]:
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return [(path.relative_to(root).as_posix(), path.read_bytes()) for path in paths]


def _trails(world: "World", home: Path) -> dict[str, bytes]:
    """Export the audit trail of every budget of a home; return the files."""
    from storage.workspace import Workspace

    found = {}
    state = world.folder / "state" if home == world.home else world.folder / "federation" / "states" / home.name
    with patch.dict(os.environ, {"DPCA_HOME": str(home), "DPCA_STATE_FOLDER": str(state)}):
        for population in populations(Workspace.read_only()):
            path = world.folder / f"{home.name}-{population}.json"
            world.inside("budget", "export", population, "--output", path)
            content = path.read_bytes()
            found[f"trail of {population} in {home.name}"] = json.dumps(json.loads(content), indent=1).encode()
    return found


def populations(workspace: Any) -> list[str]:
    """Return the populations that have a budget."""
    from flows.reports.budget_facts import populations_in
    from storage.database.engine import reading

    with reading(workspace.ledger.engine) as connection:
        return [*populations_in(connection)]


def _pages(world: "World") -> dict[str, bytes]:
    """Return the static site and every served page with its headers, following links from the overview."""
    import asyncio

    built = world.folder / "site"
    world.run("pages", "build", built)
    found = {f"static site {name}": content for name, content in _tree(built)}
    found |= world.shown  # includes the output of `pages build`
    return found | asyncio.run(_served([name for name, _ in _tree(built)]))


async def _served(paths: list[str]) -> dict[str, bytes]:
    import httpx

    from flows.web.pages import Site
    from flows.web.serving import Access, WebPages

    app: Any = WebPages(Site(live=True, curator=False), Access(token=None, loopback=True))
    found = {}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ["", "datasets.html", "names/nothing.html", *paths]:
            answer = await client.get(f"/{path}")
            headers = "\n".join(f"{name}: {value}" for name, value in sorted(answer.headers.items()))
            found[f"page /{path}"] = f"{answer.status_code}\n{headers}\n\n".encode() + answer.content
    return found


def _where(ours: bytes | None, theirs: bytes | None) -> str:
    if ours is None or theirs is None:
        return f"only in the {'second' if ours is None else 'first'} world"
    at = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)
    at = min(len(ours), len(theirs)) if at is None else at
    cut = slice(max(0, at - 40), at + 60)
    return f"at byte {at}: {ours[cut]!r} and {theirs[cut]!r}"
