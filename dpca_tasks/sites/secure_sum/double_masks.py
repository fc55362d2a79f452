"""The two masks of a masked sum: those of pairs, which cancel, and the site's own, which is opened with the sum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, subkey, words
from dpca_tasks.sites.masks import Address
from dpca_tasks.sites.roster import Roster
from dpca_tasks.sites.secure_sum.wire import Scene


@dataclass(slots=True, kw_only=True)
class DoubleMasks:
    """A site's masks of one attempt; see `dpca_tasks.sites.masks.Masks`."""

    scene: Scene
    site: str
    self_seed: SecretKey = field(repr=False)
    pair_seeds: Mapping[int, SecretKey] = field(repr=False)
    used: int = 0
    """How often the mask was taken."""

    def mask(self, address: Address, *, roster: Roster, size: int) -> NDArray[np.uint64]:
        """Return the mask of the attempt."""
        context = self.scene.context
        if (address, roster.digest, size) != (context.address, self.scene.participants.roster.digest, context.words):
            raise InvalidInput(
                f"masks of {context.words} integers were agreed on for another attempt, roster or query; "
                "ask for what the server proposed."
            )
        self.used += 1
        mask = np.zeros(size, np.uint64)
        add_mask(mask, own_mask_key(self.self_seed, self.scene), sign=1)
        place = self.scene.participants.place(self.site)
        for other, seed in self.pair_seeds.items():
            add_mask(mask, seed, sign=sign_of(place, other))
        return mask


def own_mask_key(self_seed: SecretKey, scene: Scene) -> SecretKey:
    """Return the key of a site's own mask."""
    return subkey(self_seed.secret, label="own mask", info=scene.context.digest)


def sign_of(place: int, other: int) -> int:
    """Return the sign under which the site at a place adds the mask that it shares with another."""
    return 1 if place < other else -1


def add_mask(total: NDArray[np.uint64], key: SecretKey, *, sign: int) -> None:
    """Add the words of a key to a total, or subtract them, modulo ``2^64``, in place."""
    for start in range(0, total.size, WORDS_PER_TILE):
        stop = min(start + WORDS_PER_TILE, total.size)
        drawn = words(key, stream=0, start=start, stop=stop)
        if sign > 0:
            total[start:stop] += drawn
        else:
            total[start:stop] -= drawn
