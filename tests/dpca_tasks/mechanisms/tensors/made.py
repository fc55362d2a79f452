"""Generated documents and points with known components, and a function that runs a mechanism on them."""

import numpy as np

from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.blocks import ArrayBlocks

RECORDS = 4000
TOPICS = np.array([[0.6, 0.4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.3, 0.3, 0.4]])
MEANS = np.array([[0.8, 0.6, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
WEIGHTS = np.array([0.7, 0.3])
VARIANCE = 0.05


def documents(*, words=6, seed=1):
    """Return word counts of documents, one topic per document."""
    rng = np.random.default_rng(seed)
    topics = rng.choice(2, RECORDS, p=WEIGHTS)
    return np.stack([rng.multinomial(words, TOPICS[topic]) for topic in topics]).astype(np.float64)


def points(*, seed=2):
    """Return points of a two-component mixture around `MEANS`, with normal noise."""
    rng = np.random.default_rng(seed)
    parts = rng.choice(2, RECORDS, p=WEIGHTS)
    return MEANS[parts] + np.sqrt(VARIANCE) * rng.standard_normal((RECORDS, MEANS.shape[1]))


def topics_problem(**changes):
    facts = {"n_features": 5, "model": "topics", "words_at_most": 6, "relation": "replace_one"}
    return TensorProblem(**{**facts, "records_at_most": RECORDS, **changes})


def mixture_problem(**changes):
    facts = {"n_features": 4, "model": "mixture", "clip_norm": 1.5, "relation": "replace_one"}
    return TensorProblem(**{**facts, "records_at_most": RECORDS, **changes})


def target(epsilon, delta=1e-5):
    return PrivacyTarget(epsilon=epsilon, delta=delta)


def run(mechanism, rows, problem, requested, *, reservation=None, block_records=512, kind=Curator, **acknowledged):
    """Run a tensor mechanism on rows under one fixed noise key; return the result."""
    plan = mechanism.plan(problem, requested)
    kept = reservation or InMemoryReservation(event=plan.event, key=bytes(32), relation=problem.relation)
    return mechanism.run(kind(ArrayBlocks(rows, block_records=block_records), kept, **acknowledged), plan)
