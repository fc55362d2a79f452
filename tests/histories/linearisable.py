"""Linearizability check for concurrent charges of a budget.

Some sequential order must explain all answers. The order must respect real time: a request that was answered before
another one was made comes first. A request without an answer, because its process was killed or the answer was lost,
may have been charged during the call, or never. The search is that of Wing and Gong, with memoized states.

References
----------
Jeannette Wing and Chun Gong, Testing and verifying concurrent objects, 1993.

>>> requested = [Charge(start=0, end=9, keys=frozenset({"a"}), answer="new"),
...          Charge(start=1, end=8, keys=frozenset({"b"}), answer="refused")]
>>> is_explained(requested, charged=frozenset(), fits=lambda keys: len(keys) < 2)
True
>>> is_explained(requested, charged=frozenset(), fits=lambda keys: len(keys) < 3)
False
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Keys = frozenset[str]
Answer = Literal["new", "found", "refused", "entered"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A request to charge run keys, made at step ``start`` and answered at step ``end``.

    Without an ``end``, the request is still in progress. The answer ``entered`` means that an operator accepted a
    restored ledger: the acceptance charges any number of keys, even beyond the budget.
    """

    start: int
    end: int | None
    keys: Keys
    answer: Answer

    def follow(self, charged: Keys, fits: Callable[[Keys], bool]) -> list[Keys]:
        """Return the possible next states of the ledger; none if the ledger would have answered differently."""
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


def is_explained(requested: Sequence[Charge], *, charged: Keys, fits: Callable[[Keys], bool]) -> bool:
    """Return whether some order explains all answers, for a ledger that had already charged some keys."""
    seen: set[tuple[frozenset[int], Keys]] = set()
    stack = [(frozenset(range(len(requested))), charged)]
    while stack:
        left, state = stack.pop()
        if all(requested[at].end is None for at in left):
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        ends = [requested[at].end for at in left]
        first = min(end for end in ends if end is not None)
        for at in left:
            if requested[at].start <= first:
                stack += [(left - {at}, after) for after in requested[at].follow(state, fits)]
    return False
