"""Answers of steps: one stored answer per step, for any process, any number of attempts, and any loss in between.

Answers of a stream are copied completely, eight bytes per number, and read one at a time; loss and damage are detected.
"""

import json
import logging
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Refused, Unavailable
from dpca_tasks.privacy.gate import DIGEST
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger.ledger import Ledger
from storage.ledger.step_answers import REQUEST, Reservation, step_digest
from storage.ledger.stream_rows import Answers, Tick, keep_answer, kept_answers
from storage.workspace import Workspace

ANSWER = {"answer": np.arange(6, dtype=np.int64).reshape(2, 3), "public.V": np.linspace(0, 1, 4)}
UNLIKE = {**ANSWER, "answer": ANSWER["answer"] + 1}


@pytest.fixture
def ledger(home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("DPCA_DATABASE_URL", database_url)
    opened = Workspace.open().ledger
    opened.open_budget("people", epsilon=1.0, delta=1e-6)
    return opened


@pytest.fixture
def release(ledger: Ledger) -> Reservation:
    grant = ledger.reserve(
        "people",
        run_key="k",
        fingerprint="f",
        event={"name": "gaussian", "noise_multiplier": 20.0},
        epsilon=0.2,
        delta=1e-6,
        snapshot_id="s",
        request={},
    )
    return ledger.begin(grant.release_id)


def staged(ledger: Ledger, release: Reservation) -> list[Path]:
    return sorted((ledger.home / "staging" / release.release_id).glob("*"))


def noted(ledger: Ledger, name: str) -> int:
    query = sa.select(sa.func.count()).where(tables.event.c.name == name)
    with transaction(ledger.engine) as connection:
        return int(connection.execute(query).scalar_one())


def assert_same(found: Mapping[str, NDArray[Any]] | None, wanted: Mapping[str, NDArray[Any]]) -> None:
    assert found is not None
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_a_step_without_an_answer_has_none(release: Reservation) -> None:
    assert release.kept(0) is None


def test_an_answer_is_read_back_in_this_and_in_a_resumed_release(ledger: Ledger, release: Reservation) -> None:
    assert_same(release.keep(0, ANSWER), ANSWER)
    assert_same(release.kept(0), ANSWER)
    assert_same(ledger.begin(release.release_id).kept(0), ANSWER)
    assert release.kept(1) is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool", ">f8"])
def test_arrays_of_every_type_are_read_back_unchanged(release: Reservation, dtype: str) -> None:
    arrays = {"empty": np.zeros((0, 3), dtype), "scalar": np.ones((), dtype), "matrix": np.ones((2, 2), dtype).T}
    assert_same(release.keep(0, arrays), arrays)


def test_a_digest_covers_answer_public_inputs_step_and_key_and_never_the_request() -> None:
    assert REQUEST == DIGEST, "as the gate names it"
    key, digest = bytes(32), step_digest(bytes(32), 0, ANSWER)
    for request in (b"", b"one", b"another"):
        assert step_digest(key, 0, {**ANSWER, REQUEST: np.frombuffer(request, np.uint8)}) == digest
    others = (
        UNLIKE,
        {**ANSWER, "public.V": ANSWER["public.V"] + 1},
        {**ANSWER, "public.W": ANSWER["public.V"]},
        {**ANSWER, "answer": ANSWER["answer"].reshape(3, 2)},
        {**ANSWER, "answer": ANSWER["answer"].view(np.float64)},
        {"answer": ANSWER["answer"]},
    )
    digests = {step_digest(key, 0, arrays) for arrays in others} | {step_digest(key, 1, ANSWER)}
    assert len({digest, step_digest(bytes(31) + b"1", 0, ANSWER), *digests}) == len(others) + 3


def test_the_digest_of_a_step_is_keyed_and_discarded_answers_have_no_entry(
    ledger: Ledger, release: Reservation
) -> None:
    release.keep(0, ANSWER)
    release.keep(0, UNLIKE)
    event = tables.event.c
    query = sa.select(event.name, event.detail).where(event.name.like("step_%")).order_by(event.seq)
    with transaction(ledger.engine) as connection:
        entries = [(name, json.loads(detail)) for name, detail in connection.execute(query)]
    kept = {"step": 0, "digest": step_digest(release.key, 0, ANSWER)}
    assert entries == [("step_kept", kept), ("step_conflict", {"step": 0})]


def test_the_ledger_is_verified_without_the_keys_of_its_releases(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    (ledger.home / "keys" / release.release_id).unlink()
    assert ledger.verify() > 0
    assert_same(release.kept(0), ANSWER)
    with pytest.raises(Unavailable, match="the key of release"):
        release.keep(1, ANSWER)


def test_the_first_of_two_requests_with_equal_answers_is_stored(ledger: Ledger, release: Reservation) -> None:
    first: dict[str, NDArray[Any]] = {**ANSWER, REQUEST: np.full(32, 1, np.uint8)}
    second: dict[str, NDArray[Any]] = {**ANSWER, REQUEST: np.full(32, 2, np.uint8)}
    release.keep(0, first)
    assert_same(release.keep(0, second), first)
    assert_same(release.kept(0), first)
    assert (noted(ledger, "step_kept"), noted(ledger, "step_conflict")) == (1, 0)


def test_the_answer_is_private_and_its_digest_is_journalled(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    (path,) = staged(ledger, release)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert noted(ledger, "step_kept") == 1


def test_the_witness_records_an_answer(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    last = ledger.verify()
    assert f'"seq": {last},' in (ledger.home / "keys" / "witness.json").read_text()


def test_the_same_answer_again_changes_nothing(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    assert_same(release.keep(0, dict(reversed(ANSWER.items()))), ANSWER)
    assert len(staged(ledger, release)) == 1
    assert noted(ledger, "step_conflict") == 0


def test_a_different_second_answer_is_discarded_and_reported(
    ledger: Ledger, release: Reservation, caplog: pytest.LogCaptureFixture
) -> None:
    release.keep(0, ANSWER)
    winner = staged(ledger, release)
    with caplog.at_level(logging.ERROR, logger="dpca.storage"):
        assert_same(release.keep(0, UNLIKE), ANSWER)
    assert staged(ledger, release) == winner
    assert noted(ledger, "step_conflict") == 1
    assert "computed twice with different results" in caplog.text


def test_a_lost_answer_may_be_computed_again_but_not_replaced(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    (path,) = staged(ledger, release)
    path.unlink()
    assert release.kept(0) is None
    with pytest.raises(Corrupt, match="that answer is lost"):
        release.keep(0, UNLIKE)
    assert staged(ledger, release) == []
    assert_same(release.keep(0, ANSWER), ANSWER)


def test_a_changed_answer_is_refused(ledger: Ledger, release: Reservation) -> None:
    release.keep(0, ANSWER)
    (path,) = staged(ledger, release)
    content = path.read_bytes()
    for at in range(0, len(content), 97):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(Corrupt, match="differs from the stored answer"):
            release.kept(0)
    path.write_bytes(content)
    assert_same(release.kept(0), ANSWER)


@pytest.mark.parametrize("end", ["close", "commit"])
def test_no_step_is_answered_after_a_release_has_ended(ledger: Ledger, release: Reservation, end: str) -> None:
    if end == "close":
        ledger.close(release.release_id)
    else:
        ledger.commit(release.release_id, artifact_digest="d", record=lambda _: None)
    message = "is closed" if end == "close" else "was finished by another process"
    for use in (lambda: release.keep(0, ANSWER), lambda: release.kept(0), lambda: release.key):
        with pytest.raises(Refused, match=message):
            use()
    assert not (ledger.home / "staging" / release.release_id).exists()
    assert noted(ledger, "step_kept") == 0


def test_a_staging_folder_that_cannot_be_written_is_one_clear_line(ledger: Ledger, release: Reservation) -> None:
    (ledger.home / "staging").touch()
    with pytest.raises(Unavailable, match="cannot be written"):
        release.keep(0, ANSWER)
    assert noted(ledger, "step_kept") == 0


def test_one_of_several_concurrent_answers_is_used_by_all(ledger: Ledger, release: Reservation) -> None:
    answers = [{"answer": np.full(3, number)} for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda arrays: release.keep(0, arrays), answers))
    assert len({int(arrays["answer"][0]) for arrays in found}) == 1
    assert len(staged(ledger, release)) == 1
    assert (noted(ledger, "step_kept"), noted(ledger, "step_conflict")) == (1, 7)


def test_a_reservation_never_shows_its_key(ledger: Ledger, release: Reservation) -> None:
    assert len(release.key) == 32
    for shown in (repr(release), str(release)):
        assert release.key.hex() not in shown
        assert str(ledger.home) not in shown


@contextmanager
def refusing(ledger: Ledger) -> Iterator[None]:
    """Make the database refuse all requests inside the context."""
    url = ledger.engine.url
    path = Path(str(url.database))
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    try:
        yield
    finally:
        path.rmdir()
        path.with_suffix(".away").rename(path)


def test_an_answer_without_a_row_is_not_returned(home: Path) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    event = {"name": "gaussian", "noise_multiplier": 20.0}
    requested: dict[str, Any] = {"run_key": "k", "fingerprint": "f", "snapshot_id": "s"}
    grant = ledger.reserve("people", event=event, epsilon=0.2, delta=1e-6, request={}, **requested)
    release = ledger.begin(grant.release_id)
    with refusing(ledger), pytest.raises(Unavailable, match="the database cannot be used"):
        release.keep(0, ANSWER)
    assert release.kept(0) is None
    assert_same(release.keep(0, UNLIKE), UNLIKE)


def tick(number: int, answer: str | None = None) -> Tick:
    where = {"stream": "f" * 32, "tick": number, "slot": str(number), "release_id": str(number)}
    return Tick(
        **where,  # type: ignore[arg-type]
        snapshot_id="s",
        number=1,
        arrivals="ids",
        state="committed",
        artifact_digest=None,
        answer=answer,
    )


@pytest.fixture
def place(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path)


def files(place: LocalPlace) -> list[Path]:
    return sorted((place.root / "streams" / ("f" * 32)).iterdir())


def test_an_answer_of_a_tick_is_read_back_unchanged_and_copied_once(place: LocalPlace) -> None:
    numbers = np.arange(-500, 500, dtype=np.int64)
    digest = keep_answer(place, tick(1), numbers)
    assert keep_answer(place, tick(1), numbers) == digest
    (path,) = files(place)
    assert path.stat().st_size == 8 * numbers.size + 128
    assert path.stat().st_mode & 0o777 == 0o600
    kept = Answers(place=place, ticks=(tick(1, digest),))
    np.testing.assert_array_equal(kept[1], numbers)


def test_ticks_without_an_answer_or_its_file_have_none(place: LocalPlace) -> None:
    digests = [keep_answer(place, tick(number), np.full(3, number)) for number in (1, 2, 3)]
    ticks = (tick(1, digests[0]), tick(2, digests[1]), tick(3), tick(4, digests[2]))
    files(place)[1].unlink()
    kept = Answers(place=place, ticks=ticks)
    assert list(kept) == [1]
    assert len(kept) == 1
    assert kept_answers(place, "f" * 32) == {1: {digests[0]}, 3: {digests[2]}}
    assert not Answers(place=place, ticks=())


def test_a_damaged_answer_is_refused(place: LocalPlace) -> None:
    digest = keep_answer(place, tick(1), np.arange(9))
    (path,) = files(place)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    kept = Answers(place=place, ticks=(tick(1, digest),))
    with pytest.raises(Corrupt, match="restore it from a copy, or remove it"):
        kept[1]
