"""Equal randomness and an equal clock in every world of the two-worlds test.

Random bytes that the product draws are a function of the drawing code location and of the number of its draws. So an
identifier, a key or a mask is equal in two worlds unless the worlds behaved differently before. Libraries keep their
own random bytes. The product's wall clock is stopped at one instant; monotonic clocks run.

Import this module before the product, because default arguments bind `os.urandom` when a module is imported.
"""

import hashlib
import importlib
import os
import pkgutil
import random
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from types import ModuleType, SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

PRODUCT = ("dpca", "dpca_tasks", "storage", "flows")
_BETWEEN = {"os", "uuid", "secrets", "random", __name__}
"""Modules that only pass random bytes on; their caller is the drawing location."""
_REAL_TIME = ("flows.clusters", "flows.parties.certificates")
"""Modules with the real clock: certificates must be valid now, because TLS compares them with it."""

_system = os.urandom
_lock = threading.Lock()
_drawn: Counter[str] = Counter()
_seed: bytes | None = None
_now = 0.0


def begin(seed: str, now: float) -> None:
    """Start a world: draw equal bytes from now on, and stop the product's clock at ``now`` (seconds since 1970)."""
    global _seed, _now
    _seed, _now = seed.encode(), now
    _drawn.clear()
    random.setstate(random.Random(seed).getstate())
    for name in ("uuid", "secrets"):
        importlib.import_module(name)
    for module in product_modules():
        _stop_clock(module)


def product_modules() -> list[ModuleType]:
    """Import every module of the product that a world may run, and return them."""
    found = []
    for package in PRODUCT[1:]:
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not module.name.startswith("storage.database.migrations"):
                found.append(importlib.import_module(module.name))
    return found


def _urandom(size: int) -> bytes:
    place = _drawing_place()
    if _seed is None or place is None:
        return _system(size)
    with _lock:
        _drawn[place] += 1
        number = _drawn[place]
    return hashlib.shake_256(_seed + f"\0{place}\0{number}".encode()).digest(size)


def _drawing_place() -> str | None:
    """Return the name of the product's function that draws random bytes, or None if a library draws them."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in _BETWEEN:
            known = module.partition(".")[0] in PRODUCT
            return f"{module}:{frame.f_code.co_qualname}" if known else None
        frame = frame.f_back
    return None


def _stop_clock(module: ModuleType) -> None:
    if module.__name__.startswith(_REAL_TIME):
        return
    if getattr(module, "time", None) is time:
        module.time = _TIME  # type: ignore[attr-defined]
    if getattr(module, "datetime", None) is datetime:
        module.datetime = _Stopped  # type: ignore[attr-defined]


class _Stopped(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.fromtimestamp(_now, tz)


_TIME = SimpleNamespace(**{**vars(time), "time": lambda: _now, "time_ns": lambda: int(_now * 1e9)})

os.urandom = _urandom
random._urandom = _urandom  # type: ignore[attr-defined]
for _kind in (Ed25519PrivateKey, X25519PrivateKey):
    _kind.generate = classmethod(  # type: ignore[assignment, method-assign]
        lambda cls: cls.from_private_bytes(os.urandom(32))
    )
