"""Run our mechanisms and the published covariance methods on request, in a process that may be ended at any time.

``python -m flows.reproductions.board_child`` serves as `flows.reproductions.peers.serving` does.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.parts.refined_release import refine_release
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks
from flows.reproductions.peers.amin import amin_covariance
from flows.reproductions.peers.coinpress import coinpress_covariance
from flows.reproductions.peers.dong import adaptive_covariance, separate_covariance
from flows.reproductions.peers.serving import rows_of, serve

PAPERS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "amin": amin_covariance,
    "coinpress": coinpress_covariance,
    "separate": separate_covariance,
    "adaptive": adaptive_covariance,
}


@lru_cache(maxsize=1)
def _blocks(path: str) -> ArrayBlocks:
    return ArrayBlocks(rows_of(path))


def mechanism(request: dict[str, Any]) -> NDArray[np.float64]:
    """Plan and run one of our mechanisms, and refine its release where that is asked for."""
    source = _blocks(request["rows"])
    problem = Problem(
        n_features=source.n_features, clip_norm=1.0, relation="replace_one", records_at_most=source.n_records
    )
    made = MECHANISMS[request["mechanism"]](n_components=request["k"], **request["settings"])
    plan = made.plan(problem, PrivacyTarget(epsilon=request["epsilon"], delta=request["delta"]))
    curator = Curator(source, InMemoryReservation(event=plan.event, relation=plan.problem.relation))
    released = made.run(curator, plan)
    if request["refine"] == "none":
        return np.asarray(released.components)
    return np.asarray(refine_release(released, n_components=request["k"], method=request["refine"]).subspace.components)


def paper(request: dict[str, Any]) -> NDArray[np.float64]:
    """Run a published covariance method."""
    return PAPERS[request["paper"]](
        rows_of(request["rows"]),
        n_components=request["k"],
        epsilon=request["epsilon"],
        delta=request["delta"],
        **request["settings"],
    )


if __name__ == "__main__":
    serve({"mechanism": mechanism, "paper": paper})
