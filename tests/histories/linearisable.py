"""Whether the answers of a ledger to charges at once are those of some order of them, one by one.

The order must be one that could have been: whoever was answered before another one asked comes first. A request that
got no answer, because its process was killed or the answer was lost, may have been charged while it was asked, or
never. The search is that of Wing and Gong, with the states that it was in remembered.

References
----------
Jeannette Wing and Chun Gong, Testing and verifying concurrent objects, 1993.

>>> asked = [Charge(start=0, end=9, keys=frozenset({"a"}), answer="new"),
...          Charge(start=1, end=8, keys=frozenset({"b"}), answer="refused")]
>>> is_explained(asked, charged=frozenset(), fits=lambda keys: len(keys) < 2)
True
>>> is_explained(asked, charged=frozenset(), fits=lambda keys: len(keys) < 3)
False
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Keys = frozenset[str]
Answer = Literal["new", "found", "refused", "entered"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A request to charge, by its run key, between two steps; one without an ``end`` is still being asked.

    ``entered`` is what an operator's acceptance of a restored ledger enters, over any budget, of any number of keys.
    """

    start: int
    end: int | None
    keys: Keys
    answer: Answer

    def follow(self, charged: Keys, fits: Callable[[Keys], bool]) -> list[Keys]:
        """Return the states that the ledger may be in afterwards; none where it would have answered otherwise."""
        after = charged | self.keys
        match self.answer:
            case "entered":
                return [after]
            case "found":
                return [charged] if self.keys <= charged else []
            case "refused":
                return [charged] if not self.keys <= charged and not fits(after) else []
            case "new":
                return [after] if not self.keys <= charged and fits(after) else []
            case None:
                return [charged, after] if fits(after) else [charged]


def is_explained(asked: Sequence[Charge], *, charged: Keys, fits: Callable[[Keys], bool]) -> bool:
    """Tell whether some order explains all answers, for a ledger that had charged some keys before."""
    seen: set[tuple[frozenset[int], Keys]] = set()
    stack = [(frozenset(range(len(asked))), charged)]
    while stack:
        left, state = stack.pop()
        if all(asked[at].end is None for at in left):
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        ends = [asked[at].end for at in left]
        first = min(end for end in ends if end is not None)
        for at in left:
            if asked[at].start <= first:
                stack += [(left - {at}, after) for after in asked[at].follow(state, fits)]
    return False
