"""One thread for as long as anybody needs it, and not longer."""

import importlib
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from threadpoolctl import threadpool_info, threadpool_limits

from dpca_tasks.mechanisms.base import LARGE
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.threads import one_thread, two_at_once, two_threads

ROOT = Path(__file__).parent.parent.parent


def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_last_holder_lifts_the_limit_whichever_thread_that_is():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, threadpool_limits(limits=2, user_api="blas"):
        for early, late in ((one, other), (other, one)):
            first, second = ExitStack(), ExitStack()
            early.submit(first.enter_context, one_thread()).result()
            late.submit(second.enter_context, one_thread()).result()
            assert threads() == {1}
            early.submit(first.close).result()
            assert threads() == {1}
            late.submit(second.close).result()
            assert threads() == {2}


def test_who_wants_another_number_waits_unless_it_holds_one_itself(monkeypatch):
    monkeypatch.setattr("dpca_tasks.threads.processors", lambda: 8)
    with ThreadPoolExecutor(1) as other, threadpool_limits(limits=1, user_api="blas"):
        with one_thread(), two_threads():
            assert threads() == {1}
            waiting = other.submit(_seen_by_two)
            assert not waiting.done()
        assert waiting.result(timeout=30) == {2}
        assert threads() == {1}


def _seen_by_two():
    with two_threads():
        return threads()


@pytest.mark.parametrize("available", [1, 2, 8])
def test_two_at_once_keep_their_order_and_hold_one_thread_each(monkeypatch, available):
    monkeypatch.setattr("dpca_tasks.threads.processors", lambda: available)
    inside: list[int] = []
    most: list[int] = []

    def seen(item):
        inside.append(item)
        most.append(len(inside))
        with two_threads():
            found = threads()
        inside.remove(item)
        return item, found

    with threadpool_limits(limits=2, user_api="blas"):
        assert two_at_once(seen, range(20)) == [(item, {1}) for item in range(20)]
        assert threads() == {2}
    assert max(most) <= min(2, available)


def test_what_one_of_two_raises_reaches_the_caller():
    with pytest.raises(ZeroDivisionError), threadpool_limits(limits=2, user_api="blas"):
        two_at_once(lambda item: 1 // item, [1, 0])
    with two_threads():
        pass


def test_eigenpairs_of_a_large_matrix_have_the_same_bits_whatever_the_limit():
    rows = np.random.default_rng(0).standard_normal((LARGE, LARGE))
    found = []
    for limit in (1, 2):
        with threadpool_limits(limits=limit, user_api="blas"):
            found.append(leading_eigenpairs(rows + rows.T, 8))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_kernel_starts_threads_of_its_own():
    found = [
        value
        for module in pkgutil.walk_packages([str(ROOT / "dpca_tasks")], "dpca_tasks.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Dispatcher)
    ]
    assert len(found) > 5
    assert [kernel.py_func.__name__ for kernel in found if kernel.targetoptions.get("parallel")] == []
