"""Answers of a stream are copied whole, eight bytes a number, and read one at a time; what is lost or damaged shows."""

from pathlib import Path

import numpy as np
import pytest

from storage.backends.local import LocalPlace
from storage.errors import Corrupt
from storage.ledger.stream_answers import Answers, keep_answer, kept_answers
from storage.ledger.stream_rows import Tick


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


def test_an_answer_is_read_back_as_it_was_and_copied_once(place: LocalPlace) -> None:
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
