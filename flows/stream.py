"""Streams: a private subspace for every slot of a schedule, from one release that is charged once.

`tick_stream` is what a schedule calls: a slot is one tick, however often it fires. Opening, extending, showing and
closing are acts of the operator (`flows.releases.stream_acts`).
"""

from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.options import Slot, SnapshotId, StreamName, Workers
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_release
from flows.orchestration.prefect_stages import Runner, directly, finish, in_flow
from flows.orchestration.schedule import planned_time
from flows.releases.stream_stages import make_tick
from flows.reports.activity import begin_step
from flows.settings import cluster_settings


def run_tick(
    name: str,
    *,
    slot: str | None = None,
    snapshot: str | None = None,
    workers: int | None = None,
    direct: bool = False,
) -> dict[str, Any]:
    """Run one slot of a stream from this process: as a Prefect flow, or directly."""
    if direct:
        return make_tick(directly, name, cluster_settings(workers), slot=slot, snapshot=snapshot)
    begin_step("starting Prefect")
    with prefect_server():
        # A flow's own overloads cannot tell that the function is synchronous.
        call: Callable[..., Any] = tick_stream
        report: dict[str, Any] = finish(
            lambda: call(name, slot=slot, snapshot=snapshot, workers=workers, return_state=True)
        )
        return report


@flow(name="tick-stream", persist_result=False, log_prints=False, validate_parameters=True)
def tick_stream(
    name: StreamName, *, slot: Slot = None, snapshot: SnapshotId = None, workers: Workers = None
) -> dict[str, Any] | State[Any]:
    """Publish the version of one slot of a stream, which is paid for.

    A scheduled run is the tick of its slot, however often it is tried; what was begun for an earlier slot is finished
    first.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_tick(run, name, cluster_settings(workers), slot=slot, planned=planned_time(), snapshot=snapshot)
        run(state_release, report["artifact"])
        return report

    return in_flow(body)
