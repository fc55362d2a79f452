"""The neighbouring relation for which a sensitivity and a guarantee are stated."""

from typing import Literal

Relation = Literal["add_remove", "zero_out", "replace_one"]
