"""Planted leaks that the two-worlds test must find; each is one change of the product's code, in both worlds."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch


def _count_in_a_log_line() -> None:
    """Plant a leak: log the number of summed records."""
    from flows.releases import running
    from flows.reports.terminal import log_event

    run = running.run_mechanism

    def run_and_log(planned: Any, source: Any, *others: Any, **named: Any) -> Any:
        log_event("summing", records=source.n_records)
        return run(planned, source, *others, **named)

    patch.object(running, "run_mechanism", run_and_log).start()


def _run_key_from_the_rows() -> None:
    """Plant a leak: derive the id of a release from the content of its snapshot."""
    from flows.families.base import fingerprint_of
    from flows.releases import stages
    from storage.workspace import Workspace

    def of_content(snapshot: str, requested: bytes, *, start: str | None = None) -> str:
        catalog = Workspace.read_only().catalog
        return fingerprint_of(catalog.open(catalog.entry(snapshot)).content, requested, start=start)

    patch.object(stages, "fingerprint_of", of_content).start()


def _exit_code_from_the_rows() -> None:
    """Plant a leak: exit with another code if the number of records is odd."""
    from flows import cli
    from flows.releases import running

    odd: list[int] = []
    run, end = running.run_mechanism, cli._run

    def run_and_note(planned: Any, source: Any, *others: Any, **named: Any) -> Any:
        odd.append(source.n_records % 2)
        return run(planned, source, *others, **named)

    patch.object(running, "run_mechanism", run_and_note).start()
    patch.object(cli, "_run", lambda arguments: end(arguments) + 4 * any(odd)).start()


def _block_count_in_a_file_name() -> None:
    """Plant a leak: write a file to the registry whose name contains the number of blocks."""
    from dpca.artifacts.files import write_artifact
    from flows.releases import running

    run, blocks = running.run_mechanism, []

    def run_and_note(planned: Any, source: Any, *others: Any, **named: Any) -> Any:
        blocks.append(source.n_blocks)
        return run(planned, source, *others, **named)

    def write_and_name(artifact: Any, *, home: Path, **named: Any) -> Any:
        digest = write_artifact(artifact, home=home, **named)
        (home / "registry" / f"{digest}.{blocks[-1]}").touch()
        return digest

    patch.object(running, "run_mechanism", run_and_note).start()
    patch.object(running, "write_artifact", write_and_name).start()


def _digest_of_the_request_in_the_journal() -> None:
    """Plant a leak: write to the journal a digest of all arrays of a step, including the digest of the request."""
    from storage.ledger import step_answers

    def of_all(_: bytes, step: int, arrays: Mapping[str, Any]) -> str:
        hasher = hashlib.sha256(str(step).encode())
        for name, values in sorted(arrays.items()):
            hasher.update(name.encode() + values.tobytes())
        return hasher.hexdigest()

    patch.object(step_answers, "step_digest", of_all).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A planted leak, and a part of the name of an output that reveals it."""

    plant: Callable[[], None]
    shown_in: str


LEAKS = {
    "a digest of the request in the journal": Leak(plant=_digest_of_the_request_in_the_journal, shown_in="trail"),
    "a record count in a log line": Leak(plant=_count_in_a_log_line, shown_in="stderr"),
    "a run key from the rows": Leak(plant=_run_key_from_the_rows, shown_in="trail"),
    "an exit code from the rows": Leak(plant=_exit_code_from_the_rows, shown_in="ending"),
    "a block count in a file name": Leak(plant=_block_count_in_a_file_name, shown_in="registry"),
}
