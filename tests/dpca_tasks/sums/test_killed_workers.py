"""Workers that die again and again, killed or out of memory: the sum is exact, or ends in one line after a limit."""

import os
import signal
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dpca_tasks.errors import WorkerFailed
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums import cluster_sum
from dpca_tasks.sums.exact_sum import exact_sum

ROWS = np.random.default_rng(8).standard_normal((211, 7))
MOMENT = SecondMoment(relation="add_remove", n_features=7, clip_norm=1.5, bits=12)
LIMIT = 2
"""Workers that a task may lose here; the program's clusters allow 10."""
MEMORY = 1 << 29


class Deadly(ArrayBlocks):
    """Kills the process that reads block 3, as often as there are marks, or makes it use up its memory."""

    def __init__(self, rows, *, marks, how, **cut):
        super().__init__(rows, **cut)
        self.marks, self.how = marks, how

    def read(self, block, /):
        if block == 3 and (left := sorted(self.marks.iterdir())):
            left[0].unlink()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            held = np.ones(2 * MEMORY // 8)
            time.sleep(60)
            return held
        return super().read(block)


@contextmanager
def two_workers(monkeypatch):
    monkeypatch.setattr(cluster_sum, "HEARTBEAT", 0.2)
    monkeypatch.setattr(cluster_sum, "RESUBMISSIONS", 1)
    settings = {
        "distributed.scheduler.allowed-failures": LIMIT,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": 0.95,
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=MEMORY,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            host="127.0.0.1",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.audit_only
@pytest.mark.parametrize("how", ["killed", "out of memory"])
def test_a_block_that_kills_workers_is_summed_exactly_or_given_up_in_one_line(monkeypatch, tmp_path, how):
    source = Deadly(ROWS, marks=tmp_path, how=how, block_records=9)
    with two_workers(monkeypatch) as client:
        for number in range(LIMIT):
            (tmp_path / str(number)).touch()
        found = exact_sum(source, MOMENT, client=client)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), MOMENT))
        assert not [*tmp_path.iterdir()]
        for number in range(50):
            (tmp_path / str(number)).touch()
        with pytest.raises(WorkerFailed, match=r"as when (its|their) memory runs out; .*more memory") as caught:
            exact_sum(source, MOMENT, client=client)
        assert "\n" not in str(caught.value)
        assert len([*tmp_path.iterdir()]) >= 50 - (LIMIT + 1) * (cluster_sum.RESUBMISSIONS + 1)
        for mark in tmp_path.iterdir():
            mark.unlink()
        found = exact_sum(source, MOMENT, client=client)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), MOMENT))
