"""Private estimates as artifacts: written, read back, and closed to anything that is no public fact."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts.estimate import PrivateEstimate
from storage.artifacts.files import read_artifact, write_artifact
from storage.backends.local import LocalPlace
from storage.errors import Invalid

FACTS = {"outcome": {"share": 0.7, "share_std": 0.01}, "plan": {"evaluated": "map@3"}, "mechanism": "captured_share"}


def test_an_estimate_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = PrivateEstimate(sums=np.array([6.0, 3.0, -1.0]), manifest=FACTS)
    found = read_artifact(LocalPlace(tmp_path), write_artifact(made, home=tmp_path))
    assert isinstance(found, PrivateEstimate)
    assert found.sums.tolist() == [6.0, 3.0, -1.0]
    assert found.summary() == {"evaluated": "map@3", "share": 0.7, "share_std": 0.01}
    assert found.headline() == "an estimate of how good map@3 is"
    assert pickle.loads(pickle.dumps(found)).manifest == found.manifest
    with pytest.raises(ValueError, match="read-only"):
        found.sums[0] = 0.0


def test_what_is_no_public_fact_or_no_number_is_refused() -> None:
    with pytest.raises(Invalid, match="only public facts"):
        PrivateEstimate(sums=np.ones(3), manifest={**FACTS, "n_records": 60})
    with pytest.raises(Invalid, match="finite"):
        PrivateEstimate(sums=np.array([np.nan]), manifest=FACTS)
