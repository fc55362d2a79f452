"""What estimators share: what a fitted one holds, whatever it was fitted to."""

import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from flows.estimators import InMemoryBudget, PrivateMatrixFactorization
from tests.flows.estimators.rows import ROWS, TERMS, model

FRAME = pd.DataFrame(ROWS, columns=list("abcde"))
STARS = np.random.default_rng(8).uniform(0, 5, size=(300, 9))
EXACT = PCA(2).fit(ROWS)
ROWS_AND_WHAT_FOLLOWS = [ROWS, EXACT.mean_, EXACT.components_, EXACT.explained_variance_]

FITS: dict[str, Any] = {
    "components": (lambda budget: model(budget=budget).fit(FRAME), ROWS_AND_WHAT_FOLLOWS),
    "components, clip norm chosen": (
        lambda budget: model(clip_norm="quantile:0.9", budget=budget).fit(FRAME),
        ROWS_AND_WHAT_FOLLOWS,
    ),
    "factors": (
        lambda budget: PrivateMatrixFactorization(
            2, **TERMS, ratings_between=(0, 5), ratings_per_user=5, budget=budget
        ).fit(STARS),
        [STARS, STARS.mean(axis=0)],
    ),
}


def held_bytes(thing: object, seen: set[int]) -> Iterator[bytes]:
    """Yield the bytes of every array, number and text that can be reached from an object's attributes and items."""
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        yield thing.tobytes()
        yield from held_bytes(thing.base, seen)
    elif isinstance(thing, float):
        yield np.float64(thing).tobytes()
    elif isinstance(thing, (bytes, str)):
        yield thing if isinstance(thing, bytes) else thing.encode()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for item in thing:
            yield from held_bytes(item, seen)
    elif hasattr(thing, "items"):
        for name, item in thing.items():
            yield from held_bytes(name, seen)
            yield from held_bytes(item, seen)
    else:
        kinds = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*kinds, *getattr(thing, "__dict__", ())}:
            yield from held_bytes(getattr(thing, name, None), seen)


def words_of(held: bytes) -> set[int]:
    """Return all runs of eight bytes, at whatever place they begin."""
    octets = np.frombuffer(held, np.uint8)
    if octets.size < 8:
        return set()
    return set(np.lib.stride_tricks.sliding_window_view(octets, 8).copy().view("<u8").ravel().tolist())


@pytest.mark.parametrize("kind", FITS)
def test_a_fitted_estimator_holds_no_raw_value_and_no_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, real, (fit, secrets) = [], os.urandom, FITS[kind]

    def noted(size: int) -> bytes:
        made = real(size)
        if size != 16:  # a UUID: names of files, as those of code that is compiled for the first time
            keys.append(made)
        return made

    monkeypatch.setattr(os, "urandom", noted)
    fitted = fit(InMemoryBudget(**TERMS))
    monkeypatch.undo()
    raw = {int(word) for secret in secrets for word in np.ascontiguousarray(secret).ravel().view("<u8")}
    assert [len(key) for key in keys] == [32]
    for held in (b"".join(held_bytes(fitted, set())), pickle.dumps(fitted)):
        assert fitted.components_.tobytes() in held or fitted.components_.T.tobytes() in held
        assert words_of(held) & raw == set()
        assert keys[0] not in held
        assert keys[0].hex().encode() not in held


def test_the_search_for_raw_values_finds_one() -> None:
    """Of an estimator that keeps one of its rows, in an attribute of an attribute."""
    fitted = model(budget=InMemoryBudget(**TERMS)).fit(FRAME)
    fitted.kept_ = {"row": [ROWS[3:4].copy()]}
    raw = {int(word) for word in ROWS[3].view("<u8")}
    assert words_of(b"".join(held_bytes(fitted, set()))) & raw == raw
    assert words_of(pickle.dumps(fitted)) & raw == raw
