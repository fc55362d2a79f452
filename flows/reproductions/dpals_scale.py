"""How large the made tasks of the DPALS reproduction are, and how often they are drawn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The share of the stated users and items, and the draws: expectations are for 1 and for 5 draws.

    Attributes
    ----------
    share : float
        Of users; items are as many as stated down to a quarter of the users, then fewer in proportion.
    runs : int
        Draws of the low-rank task whose median is compared; of the skewed one the mean of at most three.
    """

    share: float = 1.0
    runs: int = 5

    @property
    def few(self) -> int:
        """The draws of the skewed task, and the splits of real ratings."""
        return min(3, self.runs)

    def users(self, stated: int) -> int:
        """Return the number of users of a task."""
        return max(50, round(self.share * stated))

    def items(self, stated: int) -> int:
        """Return the number of items of a task."""
        return max(40, round(min(1.0, 4.0 * self.share) * stated))
