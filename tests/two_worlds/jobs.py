"""All kinds of jobs with public outputs, each run completely in a new home.

A job prepares its data inside the trust boundary, and then runs the public part. `JOBS` lists, for each job, the
neighbors that its privacy relation and its file format allow.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.two_worlds.tables import (
    COLUMNS,
    DOCUMENTS,
    ITEMS,
    PER_UNIT,
    POINTS,
    RATINGS,
    RECORDS,
    UNITS,
    Table,
)
from tests.two_worlds.world import World

DELTA, BOUND = "1e-6", 100
DIRECT = ("--direct", "--yes", "--json")
FIT = ("--components", "2", "--epsilon", "2", "--delta", DELTA, "--clip-norm", "2")
CELLS = ("changed", "NaN", "infinite", "no number", "missing cell", "too few cells", "open quote", "huge number")
COUNTED = ("added", "removed")

SUBSPACE: dict[str, tuple[str, ...]] = {
    "gauss": ("--mechanism", "analyze_gauss"),
    "three rounds": ("--rounds", "3", "--center", "private"),
    "like gauss": ("--like", "gauss@1"),
    "like rounds": ("--like", "three-rounds@1", "--center", "private", "--clip-norm", "quantile:0.9"),
    "quantile": ("--clip-norm", "quantile:0.9"),
    "centre": ("--center", "private"),
    "both": ("--clip-norm", "quantile:0.9", "--center", "private"),
    "normalised": ("--row-policy", "normalise"),
    "share": ("--require-share", "0.9", "--epsilon", "1.9"),
    "sulq": ("--mechanism", "mod_sulq"),
    "wishart": ("--mechanism", "wishart", "--delta", "0"),
    "laplace": ("--mechanism", "laplace", "--delta", "0"),
    "exponential": ("--mechanism", "exponential", "--delta", "0"),
    "power": ("--mechanism", "noisy_power", "--settings", "iterations=2"),
    "dps": ("--mechanism", "dps_pca", "--settings", "iterations=2"),
    "sgd": ("--mechanism", "dp_spca", "--settings", "steps=3", "--settings", "rate=0.5"),
    "vr": (
        "--mechanism",
        "dp_vrpca",
        "--settings",
        "epochs=1",
        "--settings",
        "inner_steps=2",
        "--settings",
        "rate=0.5",
    ),
    "tested": ("--mechanism", "propose_test_release", "--components", "1"),
    "smooth": ("--mechanism", "smooth_sensitivity", "--components", "1"),
    "local": ("--mechanism", "local_gaussian"),
    "too dear": ("--epsilon", "99.9"),
}
"""Releases of a subspace by name, with the options that differ from `FIT`."""
ENDS = {"share": 1, "too dear": 3}
"""Exit codes of releases that are withheld or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job and the neighboring datasets with which it is run.

    `make test` runs the ``quick`` neighbors. A ``prefect`` job needs a server, and a ``charts`` job draws all charts of
    the web pages, which takes most of its time.
    """

    play: Callable[[World], None]
    neighbours: tuple[str, ...]
    quick: tuple[str, ...] = ()
    prefect: bool = False
    charts: bool = False


def _ingest(world: World, table: Table, name: str, *words: str, neighbour: bool = True) -> Path:
    """Ingest a table unattended, as a schedule does, so that no bad record stops the ingest."""
    path = table.write(world.folder / f"{name}.csv", world.neighbour if neighbour else None)
    given = ("--unattended", "--records-at-most", str(BOUND), "--block-nnz", "40", "--direct")
    world.set_up("dataset", "ingest", path, "--name", name, *words, *given)
    return path


def _items(world: World) -> str:
    path = world.folder / "items.txt"
    path.write_text("\n".join(ITEMS) + "\n")
    return str(path)


def _open(world: World, name: str, *words: str) -> None:
    terms = ("--epsilon", "80", "--delta", "1e-4", "--failure-delta", "1e-5")
    world.set_up("budget", "open", name, *terms, "--allow-large-delta", *words)


def _subspace(world: World, *, relation: str, names: tuple[str, ...], units: bool = False) -> None:
    words = ("--unit-column", "id", "--max-rows-per-unit", str(PER_UNIT)) if units else ()
    unit = ("--unit", "id", "--rows-per-unit", str(PER_UNIT)) if units else ()
    table = UNITS if units else POINTS
    _ingest(world, table, "people", "--features", str(len(COLUMNS)), "--header", *words)
    _open(world, "people", "--relation", relation, *unit)
    for name in names:
        publish = ("--publish", name.replace(" ", "-"))
        world.run("subspace", "fit", "people", *FIT, *SUBSPACE[name], *publish, *DIRECT, status=ENDS.get(name, 0))
    public = world.folder / "public.npy"
    np.save(public, np.random.default_rng(1).normal(size=(200, len(COLUMNS))))
    world.run("subspace", "fit", "people", *FIT, "--like-public", str(public), "--publish", "public", *DIRECT)
    first = names[0]
    if first == "gauss":
        world.run("subspace", "refit", first, "--components", "1", "--publish", "fewer", "--json")
        for delta in ("0", DELTA):
            estimate = ("--release", "--epsilon", "1", "--delta", delta, "--publish", f"held-{delta}")
            world.run("subspace", "evaluate", first, "people", *estimate, *DIRECT)
    world.run("registry", "list", "--json")
    world.run("registry", "show", first, "--json")
    world.run("registry", "verify", first)
    world.run("budget", "show", "people", "--json")


def _moment(world: World) -> None:
    """Release a moment, and derive everything from it and from a subspace in rounds."""
    _ingest(world, POINTS, "people", "--features", str(len(COLUMNS)), "--header")
    _open(world, "people")
    terms = ("--epsilon", "30", "--delta", DELTA, "--clip-norm", "2", *DIRECT)
    world.run("moment", "fit", "people", "--publish", "moment", *terms)
    rounds = ("--components", "2", "--rounds", "2", "--center", "private")
    world.run("subspace", "fit", "people", "--publish", "rounds", *rounds, *terms)
    for name, refused in (("moment", 1), ("rounds", 0)):
        world.run("derive", "correlation", name, "--json")
        world.run("derive", "ridge", name, "--target", "a", "--publish", f"{name}.a", "--json", status=refused)
        world.run("derive", "pca", name, "--components", "2", "--scale", "standard", "--json")
        world.run("derive", "sample", name, "--rows", "5", "--output", "rows.csv", "--json")
        world.call(lambda: print(Path("rows.csv").read_text()))
    world.run("registry", "list", "--json")
    world.run("budget", "show", "people", "--json")


def _completion(world: World, *, tiled: bool = False) -> None:
    columns = ("--columns", "row=user,column=film,value=stars")
    _ingest(world, RATINGS, "films", "--feature-names", _items(world), *columns, "--duplicates", "last")
    _open(world, "films")
    common = ("--rank", "2", "--ratings-between", "1:5", "--ratings-per-user", "4", "--epsilon", "8", "--delta", DELTA)
    with ExitStack() as stack:
        if tiled:
            from dpca_tasks.queries import joint_sum

            stack.enter_context(patch.object(joint_sum, "TILE", 2 * 5))
        for mechanism in ("dpals",) if tiled else ("dpals", "one_shot", "dpfw", "dpsvd", "item_means"):
            publish = ("--publish", mechanism.replace("_", "-"), "--mechanism", mechanism)
            world.run("completion", "fit", "films", *common, *publish, *DIRECT)
    if not tiled:
        estimate = ("--release", "--epsilon", "4", "--delta", DELTA, "--publish", "error", "--count", "2")
        world.run("completion", "evaluate", "dpals", "films", *estimate, *DIRECT)


def _tensors(world: World) -> None:
    columns = ("--columns", "row=document,column=word,value=count")
    _ingest(world, DOCUMENTS, "reports", "--feature-names", _items(world), *columns, "--duplicates", "sum")
    _open(world, "reports")
    common = ("--components", "2", "--epsilon", "20")
    for mechanism, delta in (("avn", "0"), ("agn", DELTA)):
        requested = ("--model", "topics", "--words-at-most", "12", "--delta", delta, "--mechanism", mechanism)
        world.run("tensor", "fit", "reports", *common, *requested, "--publish", mechanism, *DIRECT)
    mixture = ("--model", "mixture", "--clip-norm", "6", "--delta", DELTA)
    world.run("tensor", "fit", "reports", *common, *mixture, "--publish", "centres", *DIRECT)


def _stream(world: World, *, direct: bool = True) -> None:
    given = ("--features", str(len(COLUMNS)), "--header")
    _ingest(world, POINTS, "people", *given)
    _open(world, "people")
    terms = ("--population", "people", "--epsilon", "4", "--delta", DELTA, "--clip-norm", "2", "--components", "2")
    for name, more in (("nightly", ()), ("middle", ("--center", "private", "--maps", "doubling"))):
        world.run("stream", "open", "people", *terms, "--ticks", "4", *more, "--publish", name, "--yes", "--json")
    how = DIRECT[::2] if direct else ("--json",)
    world.run("stream", "tick", "nightly", "--slot", "2026-01-01", *how)
    world.run("stream", "tick", "middle", "--slot", "2026-01-01", *how)
    _ingest(world, POINTS, "people", *given, neighbour=False)
    world.run("stream", "tick", "nightly", "--slot", "2026-01-02", *how)
    world.run("stream", "tick", "middle", "--slot", "2026-01-02", *how)
    world.run("stream", "show", "nightly", "--json")


def _sites(world: World) -> None:
    for name in ("north", "east", "south"):
        words = ("--features", str(len(COLUMNS)), "--header")
        _ingest(world, POINTS, name, *words, neighbour=name == "north")
        _open(world, name, "--relation", "replace_one")
    common = ("--datasets", "north,east,south", "--components", "2", "--clip-norm", "2", "--delta", DELTA)
    truncated = ("--settings", "rows_kept=3", "--settings", "iterations=3", "--settings", "burn_in=1")
    for method, more in (("cape_pca", ()), ("dps_pca", truncated), ("conv", ()), ("dp_dis", ()), ("local", ())):
        publish = ("--publish", method.replace("_", "-"), "--method", method)
        world.run("sites", "fit", *common, "--epsilon", "4", *more, *publish, *DIRECT)
    warm = ("--publish", "warm", "--method", "cape_pca", "--like", "cape-pca@1")
    world.run("sites", "fit", *common, "--epsilon", "4", *warm, *DIRECT)


def _federation(world: World, *, masks: str) -> None:
    """Make a joint release of three site processes; everything that the aggregator receives is also public."""
    from flows import demo
    from flows.parties.calling import Caller
    from flows.requests import SitesRequest
    from flows.sites.releases import fit_sites_directly

    made = 0

    def rows_of(rng: Any, records: int, features: int) -> Callable[[], Any]:
        def draw() -> Any:
            nonlocal made
            made += 1
            rows = np.random.default_rng(made).normal(size=(records, features)) / 8
            if made == 1 and world.neighbour == "changed":
                rows[7] = 1.0 / features
            return rows

        return draw

    kept: list[bytes] = []
    original = Caller.call

    def notices(caller: Any, path: str, facts: Any, *others: Any, **more: Any) -> Any:
        frame = original(caller, path, facts, *others, **more)
        arrays = {name: values.tolist() for name, values in frame.arrays.items()}
        kept.append(repr((caller.name, path, facts, dict(frame.facts), arrays)).encode())
        return frame

    _share_identities(world)
    start = demo.START
    demo.START = f"from tests.two_worlds.child import enter; enter(); {start}"
    roster: dict[str, Any] = {"masks": masks, "dropouts": 1, "attempts": 1, "timeout": 60}
    with world.captured():
        federation = demo.make_federation(
            world.folder / "federation", 3, features=4, records=RECORDS, rows_of=rows_of, **roster
        )
    requested = SitesRequest(
        roster=str(federation.roster),
        publish="joint",
        method="cape_pca",
        components=2,
        clip_norm=1.0,
        epsilon=2.0,
        delta=1e-5,
    )
    with (
        demo.running(federation),
        demo.aggregator(federation),
        patch.object(Caller, "call", notices),
    ):
        world.call(lambda: fit_sites_directly(requested), ends="{'artifact': 'joint@1'")
    for at, message in enumerate(sorted(kept)):
        world.shown[f"message {at}"] = message
    # lines are sorted, because sites answer concurrently in any order
    for log in sorted(federation.folder.glob("*.log")):
        world.shown[f"log of {log.stem}"] = b"\n".join(sorted(line[30:] for line in log.read_bytes().splitlines()))


def _share_identities(world: World) -> None:
    """Use the same certificates and ports in all worlds, because the roster of the sites contains both."""
    from flows import demo
    from flows.parties.certificates import make_identity

    shared = world.shared / "identities"
    ports = shared / "ports.json"
    if world.first:
        shared.mkdir()
        ports.write_text(json.dumps(demo.free_ports(4)))

    def identity(name: str, folder: Path) -> None:
        if world.first:
            make_identity(name, shared)
        folder.mkdir(exist_ok=True)
        for path in shared.glob(f"{name}.*"):
            shutil.copy2(path, folder)

    patch.object(demo, "make_identity", identity).start()
    patch.object(demo, "free_ports", lambda _: json.loads(ports.read_text())).start()


def _loop(world: World, *, direct: bool) -> None:
    """Refresh a subspace from two arriving files, of which the second is the neighbor; notices go to a webhook.

    Another population has the rows of the base data, and a neighbor has a record beyond the declared bound.
    """
    from tests.flows.arriving import listening

    for name in ("others", "people"):
        _ingest(world, POINTS, name, "--features", str(len(COLUMNS)), "--header", neighbour=False)
    _open(world, "people")
    inbox = world.folder / "inbox"
    inbox.mkdir()
    words = (
        *("subspace", "refresh", inbox, "people", "--features", str(len(COLUMNS)), "--header"),
        *("--records-at-most", str(RECORDS), *FIT, "--publish", "map", "--settled", "0"),
        *(DIRECT if direct else DIRECT[1:]),
    )
    with listening() as hook:
        os.environ["DPCA_WEBHOOK_URL"] = hook.url
        for name, neighbour in (("monday.csv", None), ("tuesday.csv", world.neighbour)):
            POINTS.write(inbox / f"{name}.part", neighbour).rename(inbox / name)
            world.run(*words)
        for at, notice in enumerate(hook.bodies):
            world.shown[f"notice {at}"] = notice
    world.run("registry", "list", "--json")


def _estimators(world: World) -> None:
    """Fit estimators on the base data and on the world's data.

    Each fit is made with an in-memory budget and with a ledger, without and with a slot.
    """
    from flows.estimators import InMemoryBudget, PrivatePCA
    from storage.workspace import Workspace

    table = POINTS.write(world.folder / "rows.csv", world.neighbour)
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    given: dict[str, Any] = {
        "n_components": 2,
        "epsilon": 2.0,
        "delta": 1e-6,
        "clip_norm": 2.0,
        "records_at_most": BOUND,
    }
    memory = InMemoryBudget(epsilon=50.0, delta=1e-4)
    world.set_up("budget", "open", "held", "--epsilon", "50", "--delta", "1e-4", "--allow-large-delta")
    ledger = Workspace.open().budget("held")
    base = np.loadtxt(POINTS.write(world.folder / "base.csv", None), delimiter=",", skiprows=1)
    for budget in (memory, ledger):
        for slot in (None, "november"):
            for fitted in (base, rows):
                _fit(world, PrivatePCA(**given, slot=slot, budget=budget), fitted)
        for fact in ("releases", "spent"):
            world.call(partial(getattr, budget, fact, None))
        world.call(partial(repr, budget))


def _fit(world: World, model: Any, rows: Any) -> None:
    world.call(lambda: model.fit(rows) is model, ends="True")
    facts = {name: repr(value) for name, value in vars(model).items() if name != "budget"}
    world.shown[f"model {world.runs}"] = repr(sorted(facts.items())).encode()


def _under_prefect(world: World) -> None:
    _ingest(world, POINTS, "people", "--features", str(len(COLUMNS)), "--header")
    _open(world, "people")
    for name in ("gauss", "quantile", "too dear"):
        words = ("subspace", "fit", "people", *FIT, *SUBSPACE[name], "--publish", name.replace(" ", "-"))
        world.run(*words, "--yes", "--json", status=ENDS.get(name, 0))
    estimate = ("--release", "--epsilon", "1", "--publish", "held")
    world.run("subspace", "evaluate", "gauss", "people", *estimate, "--yes", "--json")


_ADD_REMOVE = (*CELLS, *COUNTED)
_FIRST, _LIKE = ("gauss", "three rounds", "tested", "smooth"), ("like gauss", "like rounds")
_ALL = (*_FIRST, *(name for name in SUBSPACE if name not in (*_FIRST, "local")))
"""All releases, with earlier releases before those that start from them."""

JOBS: dict[str, Job] = {
    "subspace, one record more or less": Job(
        play=lambda world: _subspace(world, relation="add_remove", names=_ALL),
        neighbours=_ADD_REMOVE,
    ),
    "subspace, one record emptied": Job(
        play=lambda world: _subspace(
            world,
            relation="zero_out",
            names=("gauss", "local", "quantile", "three rounds", "like gauss", "like rounds"),
        ),
        neighbours=("changed", "NaN", "open quote"),
    ),
    "subspace, one record replaced": Job(
        play=lambda world: _subspace(world, relation="replace_one", names=(*_FIRST, "like gauss")),
        neighbours=("changed", "NaN"),
        charts=True,
    ),
    "subspace of people with several rows": Job(
        play=lambda world: _subspace(
            world, relation="add_remove", names=("gauss", "centre", "three rounds"), units=True
        ),
        neighbours=("changed", "NaN", "too many rows of one person", "added", "open quote", "no id"),
    ),
    "subspace, quick": Job(
        play=lambda world: _subspace(world, relation="add_remove", names=("gauss", "both", "laplace", "too dear")),
        neighbours=("changed",),
        quick=("changed", "NaN"),
    ),
    "moment": Job(play=_moment, neighbours=_ADD_REMOVE, quick=("changed",)),
    "completion": Job(play=_completion, neighbours=tuple(RATINGS.neighbours)),
    "completion in tiles": Job(play=lambda world: _completion(world, tiled=True), neighbours=("changed", "removed")),
    "tensors": Job(play=_tensors, neighbours=tuple(DOCUMENTS.neighbours)),
    "stream": Job(play=_stream, neighbours=("changed", "added", "NaN")),
    "sites in one process": Job(play=_sites, neighbours=("changed", "NaN")),
    "sites with a helper": Job(play=lambda world: _federation(world, masks="helper"), neighbours=("changed",)),
    "sites with a secure sum": Job(play=lambda world: _federation(world, masks="secure_sum"), neighbours=("changed",)),
    "estimators": Job(play=_estimators, neighbours=("changed", "added", "removed"), quick=("changed",)),
    "closed loop": Job(
        play=lambda world: _loop(world, direct=True), neighbours=(*CELLS, *COUNTED), quick=("NaN", "added")
    ),
    "closed loop under Prefect": Job(
        play=lambda world: _loop(world, direct=False), neighbours=("NaN", "added", "open quote"), prefect=True
    ),
    "releases under Prefect": Job(play=_under_prefect, neighbours=("changed", "removed", "NaN"), prefect=True),
}
