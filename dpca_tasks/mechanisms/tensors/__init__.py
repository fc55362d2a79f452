"""The tensor mechanisms: one module each, all with one interface, and the table of their names."""

from typing import Any

from dpca_tasks.mechanisms.tensors.agn import Agn
from dpca_tasks.mechanisms.tensors.avn import Avn
from dpca_tasks.mechanisms.tensors.non_private import NonPrivate

MECHANISMS: dict[str, type[Any]] = {mechanism.name: mechanism for mechanism in (Agn, Avn)}
"""The private mechanisms by name; all of them are audited."""

REFERENCES: dict[str, type[Any]] = {NonPrivate.name: NonPrivate}
"""The reference mechanisms, which are not private and need an acknowledgement."""
