"""A family is planned without an orchestrator and without a cluster's library."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE
from flows.requests.subspace import SubspaceRequest
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
for name in SUBSPACE.mechanisms:
    mechanism = build_mechanism(SUBSPACE, name, {}, n_components=2)
plan = build_mechanism(SUBSPACE, "analyze_gauss", {}, n_components=2).plan(
    Problem(n_features=5, clip_norm=1.0), PrivacyTarget(epsilon=1.0, delta=1e-6)
)
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([plan.mechanism, sorted(loaded & {"prefect", "dask", "distributed"})]))
"""


def test_a_mechanism_is_built_and_planned_without_prefect_and_dask() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["analyze_gauss", []]
