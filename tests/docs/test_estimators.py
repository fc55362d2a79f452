"""The pages of the estimators work as they are typed, and their numbers are those they name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.reader import DOCS, python_blocks


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python of a page, one block after the other."""
    for block in python_blocks(DOCS / "how-to" / page):
        exec(compile(block, page, "exec"), names)
    return names


def test_the_page_of_estimators_works_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    names = run("estimators.md", {})
    assert list(names["scores"].columns) == ["privatepca0", "privatepca1"]
    assert 0.8 < names["shares"].sum() < 0.9  # 20 of 24 parts
    assert names["again"].components_.tobytes() == names["model"].components_.tobytes()
    assert names["spent"] == pytest.approx(0.91, abs=0.005)
    assert names["name"] == "subspace.patients@1"
    assert names["predicted"].shape == (1, 20)
    assert np.clip(names["same"], 1, 5) == pytest.approx(names["predicted"])


def test_the_page_of_those_who_come_from_elsewhere_works_as_it_is_typed() -> None:
    """Directions without and with privacy agree: at epsilon 8 and 4,000 rows the noise is a hundredth of the gaps."""
    rows = np.random.default_rng(4).normal(size=(4_000, 5)) * [2.0, 1.0, 0.3, 0.3, 0.3]
    names = run("coming-from-diffprivlib.md", {"rows": rows})
    assert names["scores"].shape == (4_000, 2)
    assert "does not fit into InMemoryBudget(epsilon=3, delta=1e-06)" in names["line"]
    overlap = names["plain"].components_ @ names["private"].components_.T
    assert np.linalg.svd(overlap, compute_uv=False) == pytest.approx([1.0, 1.0], abs=0.01)
    assert names["scaled"].transform(rows).shape == (4_000, 2)


def test_every_parameter_that_the_page_names_exists() -> None:
    from flows.estimators import PrivatePCA

    page = (DOCS / "how-to" / "coming-from-diffprivlib.md").read_text(encoding="utf-8")
    here = "".join(row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and row.count("|") > 3)
    named = set(re.findall(r"\b(\w+)=", here)) - {"k"}
    assert {"center", "relation", "clip_norm", "mechanism"} & named
    assert named <= set(PrivatePCA().get_params())
