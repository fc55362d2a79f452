"""Differences are those of a direct computation on what was released, on the features that both versions name."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.metrics import principal_angles
from flows.web.differences import difference_facts
from flows.web.page_facts import Absent
from storage.artifacts.subspace import PrivateSubspace
from storage.workspace import Workspace
from tests.flows.web.sample_home import FEATURES, NAMES, Maker, subspace


def test_angles_and_held_variance_are_those_of_the_released_arrays(shared: Path) -> None:
    workspace = Workspace.read_only()
    left, right = (workspace.registry.load(f"visits-map@{n}", PrivateSubspace) for n in (1, 2))
    facts = difference_facts(workspace, "visits-map@1", "visits-map@2")
    np.testing.assert_allclose(facts["angles"], np.degrees(principal_angles(left.components, right.components)))
    assert right.eigenvalues is not None
    projected = right.components @ left.components.T @ left.components
    expected = right.eigenvalues @ np.square(projected).sum(axis=1) / right.eigenvalues.sum()
    assert facts["held_by_left"] == pytest.approx(expected)
    assert 0.0 < facts["overlap"] < 1.0
    assert [(row["left"], row["right"]) for row in facts["eigenvalues"]] == [(900.0, 900.0), (400.0,) * 2, (150.0,) * 2]
    assert facts["features"] == FEATURES


def test_a_version_does_not_differ_from_itself(shared: Path) -> None:
    facts = difference_facts(Workspace.read_only(), "visits-map@1", "visits-map@1")
    np.testing.assert_allclose(facts["angles"], 0.0, atol=1e-5)
    assert (facts["overlap"], facts["held_by_left"], facts["held_by_right"]) == pytest.approx((1.0, 1.0, 1.0))
    assert [row["change"] for row in facts["eigenvalues"]] == [0.0] * 3


def test_versions_of_unlike_sizes_are_compared_as_far_as_they_go(shared: Path) -> None:
    facts = difference_facts(Workspace.read_only(), "visits-map@1", "visits-map@3")
    assert len(facts["angles"]) == 2
    assert facts["eigenvalues"][2]["right"] is None
    assert facts["eigenvalues"][2]["change"] is None


def test_features_are_matched_by_name_in_any_order_and_number(sample: Path) -> None:
    maker, order = Maker(), np.random.default_rng(0).permutation(FEATURES)
    plain = subspace(seed=1)
    turned = replace(
        plain,
        components=plain.components[:, order],
        manifest={**plain.manifest, "feature_names": [NAMES[at] for at in order]},
    )
    for made in (plain, turned):
        maker.publish("same", lambda made=made, **facts: replace(made, manifest={**made.manifest, **facts}))
    facts = difference_facts(Workspace.read_only(), "same@1", "same@2")
    np.testing.assert_allclose(facts["angles"], 0.0, atol=1e-5)
    wider = replace(
        plain,
        components=np.eye(3, 5),
        spectrum=None,
        manifest={"feature_names": [*NAMES[:2], "new", "newer", "newest"], "mechanism": "analyze_gauss"},
    )
    maker.publish("same", lambda **facts: replace(wider, manifest={**wider.manifest, **facts}))
    nameless = {name: fact for name, fact in wider.manifest.items() if name not in ("feature_names", "n_features")}
    maker.publish("same", lambda **facts: replace(wider, manifest={**nameless, **facts}))
    workspace = Workspace.read_only()
    assert difference_facts(workspace, "same@1", "same@3")["features"] == 2
    apart = difference_facts(workspace, "same@1", "same@4")
    assert (apart["comparable"], apart["angles"]) == (False, None)


def test_topics_are_matched_one_to_one_and_items_by_how_far_they_moved(shared: Path) -> None:
    workspace = Workspace.read_only()
    topics = difference_facts(workspace, "report-topics@1", "report-topics@2")
    assert sorted(pair["left"] for pair in topics["pairs"]) == [1, 2]
    assert sorted(pair["right"] for pair in topics["pairs"]) == [1, 2]
    same = difference_facts(workspace, "report-topics@1", "report-topics@1")
    assert [(pair["left"], pair["right"], pair["distance"]) for pair in same["pairs"]] == [(1, 1, 0.0), (2, 2, 0.0)]
    left, right = (workspace.registry.load(f"taste@{n}") for n in (1, 2))
    items = difference_facts(workspace, "taste@1", "taste@2")
    furthest = int(np.argmax(np.abs(right.offsets - left.offsets)))
    assert items["moved"][0]["feature"] == NAMES[furthest]
    assert items["moved"][0]["change"] == pytest.approx((right.offsets - left.offsets)[furthest])


def test_estimates_are_compared_by_their_numbers_and_two_kinds_not_at_all(shared: Path) -> None:
    workspace = Workspace.read_only()
    facts = difference_facts(workspace, "visits-map.evaluation@1", "visits-map.evaluation@1")
    assert {"name": "share", "left": 0.66, "right": 0.66} in facts["numbers"]
    with pytest.raises(Absent, match="only two of one kind"):
        difference_facts(workspace, "visits-map@1", "taste@1")
    with pytest.raises(Absent, match="versions 1 to 3"):
        difference_facts(workspace, "visits-map@1", "visits-map@9")
