"""``python -m benchmarks.topics_child WARM DATASET FOLDER``: release topics on two local workers and print the cost.

The small dataset WARM is released first, so that all compiled loops are loaded before the release of DATASET is timed.
FOLDER is for temporary files.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.gauges import peak_bytes, seconds_of
from dpca.artifacts.tensor import TensorComponents
from dpca.registry.reader import Registry
from flows.clusters.connecting import NO_CLUSTER, connect, open_cluster
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import TensorRequest
from flows.settings import Settings

WORKERS, COMPONENTS = 2, 20


def main(warm: str, dataset: str, scratch: Path) -> None:
    """Release topics of ``dataset``, and print wall and processor seconds and peak bytes of a worker and the client."""
    local = Settings(cluster="local", workers=WORKERS)
    with open_cluster(local, scratch=scratch) as address, connect(address) as client:
        assert client is not None
        client.wait_for_workers(WORKERS)
        released(warm, cluster=address)
        before = time.process_time() + sum(client.run(time.process_time).values())
        found = released(dataset, cluster=address)
        after = time.process_time() + sum(client.run(time.process_time).values())
        worker = max(client.run(peak_bytes).values())
    print(json.dumps({**found, "worker": worker, "processor": after - before}))


def released(dataset: str, *, cluster: str = NO_CLUSTER) -> dict[str, float]:
    """Release the topics of a dataset, and return its seconds, this process's peak bytes and the number of topics."""
    request = TensorRequest(
        dataset=dataset,
        publish="topics",
        model="topics",
        components=COMPONENTS,
        words_at_most=50,
        epsilon=1.0,
        delta=1e-9,
        run_key=f"{dataset} {os.getpid()}",
    )
    taken = seconds_of(lambda: make_release(directly, request, Settings(cluster=cluster)))
    found = Registry.open().load("topics", TensorComponents)
    return {"seconds": taken, "client": peak_bytes(), "components": found.n_components}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
