"""The completion mechanisms: one module each, all with one interface, and the table of their names."""

from typing import Any

from dpca_tasks.mechanisms.completion.als import Als, Ials
from dpca_tasks.mechanisms.completion.dpals import Dpals
from dpca_tasks.mechanisms.completion.dpfw import Dpfw
from dpca_tasks.mechanisms.completion.dpsvd import Dpsvd
from dpca_tasks.mechanisms.completion.item_means import ItemMeans
from dpca_tasks.mechanisms.completion.one_shot import OneShot

MECHANISMS: dict[str, type[Any]] = {mechanism.name: mechanism for mechanism in (Dpals, Dpfw, Dpsvd, ItemMeans, OneShot)}
"""The private mechanisms by name; all of them are audited."""

REFERENCES: dict[str, type[Any]] = {Als.name: Als, Ials.name: Ials}
"""The reference mechanisms, which are not private and need an acknowledgement."""
