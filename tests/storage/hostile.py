"""Program that loads artifacts from an untrusted source, in bounded memory.

    python -m tests.storage.hostile FOLDER SEED INPUTS

Each input is an artifact and its pointer, one of which is changed: bytes anywhere, or facts of a JSON file. Changed
files are addressed by their new digest, as their author would address them. The last line reports how the loads ended.
"""

import json
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import digest_files, read_tree
from dpca.backends.local import LocalPlace
from dpca.errors import StorageError
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry

MOST_ADDRESSES = 1 << 30
SECONDS = 20
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "a\nb", "\x00", "x" * 10_000, "../../secret", "gzip", "float64", "object", "<f8", "big"),
    *([], {}, [[]], [{}], {"private": None}, [20_000, 20_000], [10**9, 7], [1, 1], [0, 7], ["a"] * 7, {"x": [{}]}),
    *([{"name": "gzip", "configuration": {"level": 5}}], [{"name": "bytes"}], {"name": "regular"}),
)
TEXTS = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"NaN",
    b"1" * 10_000,
    b"\xff\xfe",
    b'"\\ud800"',
)


def base() -> PrivateSubspace:
    """Return a subspace that has every kind of array."""
    basis, values = np.linalg.qr(np.random.default_rng(1).normal(size=(7, 4)))[0].T, np.arange(4.0)[::-1]
    facts = {
        "mechanism": "analyze_gauss",
        "plan": {"noise_multiplier": 4.2},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "event": {"name": "gaussian"}},
        "feature_names": list("abcdefg"),
        "clip_norm": 1.5,
        "total_variance": 12.0,
        "outcome": {"failed": False},
    }
    return PrivateSubspace(
        components=basis[:2],
        eigenvalues=values[:2],
        spectrum=values,
        further=basis[2:],
        mean=np.ones(7),
        manifest=facts,
    )


def change_bytes(payload: bytes, rng: Random) -> bytes:
    """Return a payload with bytes flipped, removed, repeated or replaced."""
    kind, at = rng.randrange(5), rng.randrange(max(len(payload), 1))
    changed = bytearray(payload)
    if kind == 0 and changed:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        changed += changed[at:]
    elif kind == 3:
        changed[at : at + 8] = rng.randbytes(8)
    else:
        return rng.choice(TEXTS)
    return bytes(changed)


def change_facts(payload: bytes, rng: Random) -> bytes:
    """Return a JSON text with something replaced, dropped or added anywhere."""
    content = json.loads(payload)
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(content)
    node, key = rng.choice(spots)
    kind = rng.randrange(8)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[rng.choice(("x", "a\nb", "shape", "privacy"))] = node.pop(key)
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(content).encode()


def change(files: dict[str, bytes], pointer: bytes, rng: Random) -> tuple[dict[str, bytes], bytes | None]:
    """Change one file of an artifact, or its pointer.

    Return None as the pointer if it must be computed from the changed files.
    """
    kinds: tuple[Callable[[bytes, Random], bytes], ...] = (change_bytes, change_facts, change_facts)
    if rng.randrange(4) == 0:
        return files, rng.choice(kinds)(pointer, rng)
    path = rng.choice(sorted(files))
    changed = dict(files)
    kind = rng.choice(kinds) if path.endswith(".json") else change_bytes
    changed[path] = kind(changed[path], rng)
    if rng.randrange(12) == 0:
        del changed[path]
    return changed, None


def end_of(home: Path, use: str) -> str:
    """Load the changed artifact, and return the name of the outcome."""
    signal.alarm(SECONDS)  # the alarm ends this process if loading takes too long
    registry = Registry.open(home)
    try:
        {"load": registry.load, "show": registry.show, "verify": registry.verify}[use]("news@champion")
    except StorageError as error:
        text = str(error)
        assert "\n" not in text, text
        assert len(text) < 1000, text
        return type(error).__name__
    finally:
        signal.alarm(0)
    return "loaded"


def main(folder: Path, seed: int, inputs: int) -> None:
    """Load all inputs, and print how the loads ended."""
    digest = write_artifact(base(), home=folder / "sound")
    files = read_tree(folder / "sound" / "registry" / "artifacts" / digest)
    pointer = Pointer(name="news", versions={1: digest, 2: digest}, aliases={"champion": 1}, not_private=frozenset({2}))
    LocalPlace(folder).write(pointer.path("news"), pointer.encode(), over=None)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_ADDRESSES, used + MOST_ADDRESSES))
    endings: Counter[str] = Counter()
    for number in range(inputs):
        rng, home = Random(seed + number), folder / str(number)
        changed, shown = change(files, pointer.encode(), rng)
        digest = digest_files(changed)
        for path, payload in changed.items():
            target = home / "registry" / "artifacts" / digest / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(payload)
        versions = {1: digest}
        if shown is None:
            shown = Pointer(name="news", versions=versions, aliases={"champion": 1}).encode()
        LocalPlace(home).write(Pointer.path("news"), shown, over=None)
        try:
            endings[end_of(home, rng.choice(("load", "show", "verify")))] += 1
        except BaseException:
            print("input", number, file=sys.stderr)
            raise
    print(canonical_json(dict(endings)).decode().replace("\n", ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
