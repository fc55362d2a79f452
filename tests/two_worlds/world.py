"""One world: a job with given randomness in a new home, and all public outputs of the job.

A world runs in a separate process, forked from a server that has imported all modules. The world's folder always has
the same path, so that no path differs.
"""

import contextlib
import faulthandler
import json
import multiprocessing
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRELOADED = ["tests.two_worlds.chance", "tests.two_worlds.preloaded"]
DEADLINE = 240.0
"""Seconds after which a world counts as stuck."""


@dataclass(kw_only=True)
class World:
    """A world: the folder of a job, the data, and the public outputs.

    Attributes
    ----------
    folder : Path
    shared : Path
        A folder shared by all worlds of a job.
    neighbour : str or None
        The name of the neighboring dataset; None for the base data.
    first : bool
        Whether this is the world whose answers all others receive.
    shown : dict of str to bytes
        Public outputs by name.
    """

    folder: Path
    shared: Path
    neighbour: str | None
    first: bool
    shown: dict[str, bytes] = field(default_factory=dict)
    runs: int = 0

    @property
    def home(self) -> Path:
        """The ``dpca`` home folder of the world."""
        return self.folder / "home"

    def inside(self, *words: object) -> int:
        """Run a command whose output stays inside the trust boundary."""
        from flows.cli import main

        with self.captured():
            return main([str(word) for word in words])

    def set_up(self, *words: object) -> None:
        """Run a command inside the trust boundary, which must succeed; its output is not public."""
        from flows.cli import main

        with self.captured() as output:
            status = main([str(word) for word in words])
        if status:
            raise AssertionError(f"{words} failed and must succeed: {output[1].read_text()}")

    def run(self, *words: object, status: int = 0) -> None:
        """Run a command whose output and exit code are public; in the first world, the exit code must be ``status``."""
        from flows.cli import main

        self.call(lambda: main([str(word) for word in words]), ends=str(status))

    def call(self, body: Callable[[], object], *, ends: str = "") -> None:
        """Run code whose output, warnings and result are public.

        In the first world, the result must begin with ``ends``.
        """
        with self.captured() as output, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                ending = repr(body())
            except Exception as error:  # noqa: BLE001 - a caller sees every error
                ending = f"{type(error).__name__}: {error}"
        name = f"run {self.runs}"
        self.runs += 1
        kept = [each.message for each in warned if not issubclass(each.category, ResourceWarning)]  # from `gc`
        message = [f"{type(each).__name__}: {each}" for each in kept]
        self.shown |= {f"{name} ending": "\n".join([ending, *message]).encode()}
        for stream, path in zip(("stdout", "stderr"), output, strict=True):
            self.shown[f"{name} {stream}"] = path.read_bytes()
        if self.first and not ending.startswith(ends):
            raise AssertionError(f"{name} ended with {ending}, not {ends}: {self.shown[f'{name} stderr'][-600:]!r}")

    @contextlib.contextmanager
    def captured(self) -> Iterator[tuple[Path, Path]]:
        """Redirect the output of this process and its children to two files."""
        paths = (self.folder / "stdout", self.folder / "stderr")
        before = [os.dup(1), os.dup(2)]
        sys.stdout.flush(), sys.stderr.flush()
        for stream, path in zip((1, 2), paths, strict=True):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, stream)
            os.close(descriptor)
        try:
            yield paths
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for stream, saved in zip((1, 2), before, strict=True):
                os.dup2(saved, stream)
                os.close(saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The job, the data and the shared randomness with which a world is started."""

    job: str
    neighbour: str | None
    first: bool
    folder: str
    answers: str
    now: float
    planted: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


def enter(terms: Terms, label: str) -> Any:
    """Set the randomness, the clock and the noise of this process to those of a world."""
    from tests.two_worlds import chance
    from tests.two_worlds.answers import Answers

    chance.begin(f"two worlds, {label}", terms.now)
    answers = Answers(Path(terms.answers), label, first=terms.first)
    answers.install()
    _blank_keyed_arrivals()
    return answers


def _blank_keyed_arrivals() -> None:
    """Replace the digest of keyed hashes of ids in the journal by a constant.

    Worlds share the secret key of the hashes, which no reader of the journal has.
    """
    from storage.ledger import journal

    append = journal.append

    def blanked(connection: Any, name: str, *, detail: Any = None, **others: Any) -> Any:
        if name == "arrivals_recorded":
            detail = {**detail, "digest": "keyed"}
        return append(connection, name, detail=detail, **others)

    journal.append = blanked


def run_world(terms: Terms) -> dict[str, bytes]:
    """Run a job in a separate world; return its public outputs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_live, args=(terms, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(DEADLINE):
            raise TimeoutError(f"{terms.job} with {terms.neighbour}: no answer in {DEADLINE:.0f} seconds")
        found = ours.recv()
    finally:
        process.join(10)
        process.kill()
        shutil.rmtree(terms.folder, ignore_errors=True)
    if isinstance(found, str):
        raise AssertionError(found)
    return dict(found)


def _live(terms: Terms, answer_to: Any) -> None:
    faulthandler.enable()
    try:
        answer_to.send(_play(terms))
    except BaseException:  # noqa: BLE001 - the parent raises it
        answer_to.send(traceback.format_exc())


def _play(terms: Terms) -> dict[str, bytes]:
    from prefect.context import refresh_global_settings_context

    from flows.cli import PREFECT_DEFAULTS
    from flows.web import pages
    from tests.two_worlds import jobs, outputs, planted, prefect

    folder = Path(terms.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # remove variables of a test that ran when the server started
    for name in [name for name in os.environ if name.startswith("DPCA_")]:
        del os.environ[name]
    os.environ.update({**PREFECT_DEFAULTS, **terms.environment})
    os.environ |= {
        "DPCA_HOME": str(folder / "home"),
        "DPCA_STATE_FOLDER": str(folder / "state"),
        "DPCA_CLUSTER": "none",
        "DPCA_LOG": "json",
        "TWO_WORLDS": json.dumps({name: getattr(terms, name) for name in Terms.__slots__}),
    }
    os.chdir(folder)
    refresh_global_settings_context()  # Prefect read its settings before this environment was set
    if "PREFECT_API_URL" in terms.environment:
        prefect.remember()
    enter(terms, "main")
    if terms.planted is not None:
        planted.LEAKS[terms.planted].plant()
    if not jobs.JOBS[terms.job].charts:
        pages.DRAWN = 0
    world = World(folder=folder, shared=Path(terms.answers), neighbour=terms.neighbour, first=terms.first)
    jobs.JOBS[terms.job].play(world)
    return outputs.normalised(outputs.collect(world))
