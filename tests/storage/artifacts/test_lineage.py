"""Tags say where an export came from and what it guarantees."""

import numpy as np

from storage.artifacts.lineage import lineage_tags
from storage.artifacts.subspace import PrivateSubspace
from tests.storage.artifacts.test_fitted_transformer import ENCODER
from tests.storage.artifacts.test_subspace import SUBSPACE


def test_declared_facts_become_texts_and_the_rest_is_left_out() -> None:
    assert lineage_tags(SUBSPACE, reference="news@2", digest="ab") == {
        "dpca.artifact": "news@2",
        "dpca.digest": "sha256:ab",
        "dpca.private": "yes",
        "dpca.release": "a" * 32,
        "dpca.mechanism": "analyze_gauss",
        "dpca.code_version": "0.1.0",
        "dpca.epsilon": "1.0",
        "dpca.delta": "1e-06",
        "dpca.relation": "add_remove",
        "dpca.unit": "record",
    }


def test_what_has_no_guarantee_says_so() -> None:
    facts = {"mechanism": "non_private", "privacy": {"private": False}}
    reference = PrivateSubspace(components=np.eye(1, 2), manifest=facts)
    assert lineage_tags(reference, reference="x@1", digest="ab")["dpca.private"] == "no"


def test_a_release_of_an_encoded_table_says_what_its_input_is() -> None:
    facts = {"feature_names": ["age", "sex=f", "sex=m"], "encoder": ENCODER}
    encoded = PrivateSubspace(components=np.eye(1, 3), manifest=facts)
    tags = lineage_tags(encoded, reference="x@1", digest="ab")
    assert tags["dpca.input"] == "columns as the release's encoder makes them"
