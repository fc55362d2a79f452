"""Processor time of a round of a secure sum with ten sites in this process.

The time includes all keys, signatures and secret shares, but not the local sums of the sites. The bars for a round are
one second for a product with 1,000 columns and five components, and fifteen seconds for a second moment of 1,000
columns. Masks must be generated at 5e7 words per second of processor time.
"""

import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.conftest import Measurement
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.sites.roster import Address, Masks, Member, Roster, masked
from dpca_tasks.sites.secure_sum.attempt import SiteMachine, open_sum
from dpca_tasks.sites.secure_sum.session import SiteSession, add_mask
from dpca_tasks.sites.secure_sum.wire import Context, Identity, Participants, Scene

SITES = 10
MASK_BAR = 5e7


@dataclass
class Forgetful:
    """An in-memory key-value store for a site's protocol state, so that the measurement excludes the disk."""

    kept: dict[bytes, bytes] = field(default_factory=dict)

    def recall(self, key: bytes) -> bytes | None:
        """Return the value stored under a key, or None."""
        return self.kept.get(key)

    def remember(self, key: bytes, value: bytes) -> bytes:
        """Store a value unless the key already has a value; return the value that is stored then."""
        return self.kept.setdefault(key, value)


@pytest.mark.parametrize(
    ("words", "bar"), [(1000 * 5, 1.0), (1000 * 1001 // 2, 15.0)], ids=["product", "second-moment"]
)
def bench_secure_sum(words: int, bar: float, benchmark: BenchmarkFixture, measure: Measurement, *, toy: bool) -> None:
    words = 50 if toy else words
    identities = {f"{at:04d}": Identity.draw() for at in range(SITES)}
    members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in identities)
    roster = Roster(session="benchmark", members=members, colluders=3)
    participants = Participants(roster=roster, keys={name: identity.public for name, identity in identities.items()})
    context = Context(
        session=roster.session,
        address=Address(round=0),
        participants=participants.digest,
        requested=hashlib.sha256(b"query").digest(),
        words=words,
    )
    scene = Scene(participants=participants, context=context)
    integers = {name: np.random.default_rng(at).integers(-(2**40), 2**40, words) for at, name in enumerate(identities)}

    def line_of(name: str) -> SiteMachine:
        def contribute(masks: Masks) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
            return masked(integers[name], masks.mask(context.address, roster=roster, size=words))

        session = SiteSession(
            scene=scene, site=name, identity=identities[name], memory=Forgetful(), contribute=contribute
        )
        return SiteMachine(session)

    def go_through() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return open_sum(scene, {name: line_of(name).receive for name in identities}).integers

    total = benchmark.pedantic(go_through, rounds=1 if toy else 5, warmup_rounds=0 if toy else 1)
    np.testing.assert_array_equal(total, sum(integers.values()))
    start = time.process_time()
    go_through()
    measure("processor-seconds-a-round", time.process_time() - start, at_most=bar)


def bench_masks(benchmark: BenchmarkFixture, measure: Measurement, *, toy: bool) -> None:
    size = 1000 if toy else 5_000_000
    key = subkey(bytes(32), label="benchmark", info=b"masks")
    mask = np.zeros(size, np.uint64)
    benchmark.pedantic(lambda: add_mask(mask, key, sign=1), rounds=1 if toy else 5, warmup_rounds=1)
    start = time.process_time()
    add_mask(mask, key, sign=1)
    measure("words-a-second", size / (time.process_time() - start), at_least=MASK_BAR)
    assert np.any(mask)
