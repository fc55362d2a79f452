"""Bytes sent for a sum over sites, as printed in the CAPE paper and by two protocols of dpca.

>>> sent = pca_bytes(features=20, components=3, sites=4)
>>> sent["as printed"] == 3 * 4 * 20 * 20 * 8
True
>>> sent["as printed"] > sent["secure sum"] > sent["dealt seeds"]
True
"""

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np

from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.roster import Address, Masks, Member, Roster, masked
from dpca_tasks.sites.secure_sum.attempt import Line, SiteMachine, open_sum
from dpca_tasks.sites.secure_sum.session import SiteSession
from dpca_tasks.sites.secure_sum.wire import Context, Identity, Participants, Scene

NUMBER, SEED = 8, 32
"""The bytes of a number and of a seed."""


def pca_bytes(*, features: int, components: int, sites: int) -> dict[str, int]:
    """Return the bytes of one run of capePCA for each form of the sum, and the bytes of the baselines.

    As printed, the noise generator and the aggregator each send a d x d matrix to each site, and the site returns a
    d x d matrix. With dealt seeds, a site sends one triangle of integers, and the dealer sends each site one seed per
    other site.
    """
    triangle = features * (features + 1) // 2
    return {
        "as printed": 3 * sites * features**2 * NUMBER,
        "dealt seeds": sites * triangle * NUMBER + sites * (sites - 1) * SEED,
        "secure sum": secure_sum_bytes(sites=sites, words=triangle),
        "conv": sites * triangle * NUMBER,
        "dp_dis": sites * features * min(2 * components, features) * NUMBER,
    }


def agn_bytes(*, features: int, components: int, sites: int) -> dict[str, int]:
    """Return the bytes of one run of capeAGN for each form of its two sums.

    The bytes include the directions that the sites receive between the two sums. As printed, a site receives two D x D
    matrices and two D x D x D arrays of noise, and sends D x D and K x K x K numbers. The paper counts only the bytes
    that the sites send.
    """
    triples = math.comb(components + 2, 3)
    triangle = features * (features + 1) // 2
    directions = sites * features * components * NUMBER
    seeds = 2 * sites * (sites - 1) * SEED
    return {
        "as printed": sites * (3 * features**2 + 2 * features**3 + components**3) * NUMBER + directions,
        "dealt seeds": sites * (triangle + triples) * NUMBER + seeds + directions,
        "secure sum": sum(secure_sum_bytes(sites=sites, words=words) for words in (triangle, triples)) + directions,
        "conv": sites * (triangle + triples) * NUMBER + directions,
    }


def secure_sum_bytes(*, sites: int, words: int) -> int:
    """Run a secure sum of ``words`` zeros in this process, and return the bytes of all messages in both directions."""
    names = [f"{at:04d}" for at in range(sites)]
    identities = {name: Identity(SecretKey(hashlib.sha256(name.encode()).digest())) for name in names}
    members = tuple(Member(name=name, records=1, noise_multiplier=1.0) for name in names)
    roster = Roster(session="bytes", members=members, colluders=0)
    participants = Participants(roster=roster, keys={name: each.public for name, each in identities.items()})
    address = Address(round=0, attempt=0)
    requested = hashlib.sha256(b"zeros").digest()
    context = Context(
        session="bytes", address=address, participants=participants.digest, requested=requested, words=words
    )
    scene = Scene(participants=participants, context=context)

    def contribute(masks: Masks) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return masked(np.zeros(words, np.int64), masks.mask(address, roster=roster, size=words))

    counted = [0] * sites

    def line(at: int, machine: SiteMachine) -> Line:
        def send(frame: bytes) -> bytes:
            answer = machine.receive(frame)
            counted[at] += len(frame) + len(answer)
            return answer

        return send

    lines = {}
    for at, name in enumerate(names):
        session = SiteSession(scene=scene, site=name, identity=identities[name], memory=_Kept(), contribute=contribute)
        lines[name] = line(at, SiteMachine(session))
    total = open_sum(scene, lines)
    assert not total.integers.any()
    return sum(counted)


@dataclass
class _Kept:
    """An in-memory store for the protocol state of a site."""

    values: dict[bytes, bytes] = field(default_factory=dict)

    def recall(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def remember(self, key: bytes, value: bytes) -> bytes:
        return self.values.setdefault(key, value)
