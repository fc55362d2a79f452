"""Which datasets are neighbours: the relation that a sensitivity and a guarantee are stated for."""

from typing import Literal

Relation = Literal["add_remove", "zero_out", "replace_one"]
