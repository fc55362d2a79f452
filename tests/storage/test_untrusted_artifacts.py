"""Untrusted artifacts and pointers: loading them is correct or fails with a one-line error, in bounded memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import MOST_FILES, digest_files, read_tree
from dpca.backends.local import open_place
from dpca.errors import Corrupt, StorageError, Unavailable
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from tests.s3 import serve

INPUTS, SEED = 400, 20_261_122
SUBSPACE = PrivateSubspace(components=np.eye(2, 3), eigenvalues=np.array([2.0, 1.0]), manifest={})
COMPONENTS = "subspace.zarr/components/zarr.json"


def publish(home: Path, files: dict[str, bytes] | None = None) -> Path:
    """Publish files, or a valid subspace, as ``news@1`` under their digest; return the artifact's folder."""
    digest = write_artifact(SUBSPACE, home=home) if files is None else digest_files(files)
    folder = home / "registry" / "artifacts" / digest
    for path, payload in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(payload)
    pointer = home / Pointer.path("news")
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.write_bytes(Pointer(name="news", versions={1: digest}, aliases={"champion": 1}).encode())
    return folder


def load_in_child(home: Path, *, mebibytes: int = 512) -> str:
    """Load ``news`` in a child with limited memory, and return the last line of its output.

    ``mebibytes`` are added to the memory that the imports need.
    """
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from dpca.errors import StorageError\n"
        "from dpca.registry.reader import Registry\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "most = used + (int(sys.argv[2]) << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try: print(Registry.open(sys.argv[1]).load('news'))\n"
        "except StorageError as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program, str(home), str(mebibytes)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


def test_every_changed_file_loads_correctly_or_fails_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.storage.hostile", str(tmp_path), str(SEED), str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    endings = json.loads(done.stdout)
    assert sum(endings.values()) == INPUTS
    assert endings["Corrupt"] > INPUTS / 2
    assert endings["loaded"] > INPUTS / 20


@pytest.mark.parametrize("checksum", ["with", "without"])
@pytest.mark.parametrize("digest", ["../../secret", "", "0" * 63, "A" * 64, "0" * 63 + "\u0660", "/etc", "."])
def test_a_pointer_without_a_digest_is_corrupt_and_reads_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str, checksum: str
) -> None:
    publish(tmp_path)
    (tmp_path / "secret").mkdir()
    pointer = Pointer(name="news", versions={1: digest}, aliases={})
    payload = pointer.encode() if checksum == "with" else canonical_json({"versions": {"1": digest}, "aliases": {}})
    (tmp_path / Pointer.path("news")).write_bytes(payload)
    monkeypatch.setattr("dpca.backends.local.read_tree", lambda *_, **__: pytest.fail("a folder was read"))
    with pytest.raises(Corrupt, match="is damaged"):
        Registry.open(tmp_path).load("news")


def test_an_array_shorter_than_declared_is_corrupt(tmp_path: Path) -> None:
    files = read_tree(publish(tmp_path / "sound"))
    for number, (key, value) in enumerate(
        [
            ("shape", [20_000, 20_000]),
            ("shape", [2**31, 3]),
            ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [20_000, 20_000]}}),
            (
                "codecs",
                [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {}}],
            ),
            ("data_type", "complex128"),
        ]
    ):
        described = json.loads(files[COMPONENTS]) | {key: value}
        if value == [20_000, 20_000]:
            described["chunk_grid"]["configuration"]["chunk_shape"] = value
        publish(tmp_path / str(number), files | {COMPONENTS: json.dumps(described).encode()})
        with pytest.raises(Corrupt, match=r"is not a valid artifact \(.*components") as caught:
            Registry.open(tmp_path / str(number)).load("news")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["pointer", "manifest.json", "more"])
def test_a_pipe_is_corrupt_and_is_not_waited_for(tmp_path: Path, where: str) -> None:
    folder = publish(tmp_path)
    path = tmp_path / Pointer.path("news") if where == "pointer" else folder / where
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert load_in_child(tmp_path).startswith("Corrupt ")


@pytest.mark.parametrize("where", ["pointer", "manifest.json"])
def test_a_large_sparse_file_is_refused_before_it_is_read(tmp_path: Path, where: str) -> None:
    folder = publish(tmp_path)
    path = tmp_path / Pointer.path("news") if where == "pointer" else folder / where
    path.touch()
    os.truncate(path, 1 << 42)
    ended = load_in_child(tmp_path)
    assert ended.startswith("Corrupt " if where == "pointer" else "Unavailable ")
    assert f"of at most {1 << 24} bytes" in ended if where == "pointer" else str(1 << 42)[:8] in ended


def test_an_artifact_larger_than_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = publish(tmp_path)
    os.truncate(folder / "manifest.json", 1 << 30)
    assert load_in_child(tmp_path, mebibytes=128).startswith("Unavailable artifact")


def test_more_files_than_an_artifact_has_are_refused(tmp_path: Path) -> None:
    folder = publish(tmp_path)
    for number in range(MOST_FILES):
        (folder / str(number)).touch()
    with pytest.raises(Corrupt, match="more than 4096 files"):
        Registry.open(tmp_path).load("news")


def test_one_flipped_bit_in_a_pointer_is_found(tmp_path: Path) -> None:
    digests = {1: 64 * "1", 2: 64 * "2", 3: 64 * "3"}
    pointer = Pointer(name="news", versions=digests, aliases={"champion": 2}, not_private=frozenset({1}))
    path = tmp_path / Pointer.path("news")
    path.parent.mkdir(parents=True)
    sound = pointer.encode()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            Registry.open(tmp_path).resolve("news@champion")
    path.write_bytes(sound)
    assert Registry.open(tmp_path).resolve("news@champion").digest == digests[2]


def test_a_pointer_is_read_only_with_a_matching_checksum(tmp_path: Path) -> None:
    publish(tmp_path)
    path = tmp_path / Pointer.path("news")
    content = json.loads(path.read_bytes())
    path.write_bytes(canonical_json(content | {"checksum": "0" * 64}))
    with pytest.raises(Corrupt, match="is damaged"):
        Registry.open(tmp_path).load("news")
    del content["checksum"]
    path.write_bytes(canonical_json(content))
    with pytest.raises(Corrupt, match="is damaged"):
        Registry.open(tmp_path).load("news")


def test_artifacts_in_an_object_store_are_verified_like_those_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = publish(tmp_path / "sound")
    described = json.loads((sound / COMPONENTS).read_bytes()) | {"shape": [20_000, 20_000]}
    lying = publish(tmp_path / "lying", read_tree(sound) | {COMPONENTS: json.dumps(described).encode()})
    cases: dict[str, tuple[Path, Callable[[Path], object]]] = {
        "of the size that its shape declares|not stored as": (lying, lambda _: None),
        "at most 16777216": (sound, lambda home: os.truncate(home / Pointer.path("news"), (1 << 24) + 1)),
        "is damaged": (sound, lambda home: (home / Pointer.path("news")).write_bytes(b"[" * 100_000)),
    }
    with serve() as server:
        server.enter(monkeypatch)
        for number, (shown, (folder, change)) in enumerate(cases.items()):
            home, place = folder.parents[2], open_place(server.url(str(number)))
            change(home)
            for path, payload in read_tree(home / "registry").items():
                place.write(f"registry/{path}", payload, over=None)
            with pytest.raises(StorageError, match=shown) as caught:
                Registry(place).load("news")
            assert "\n" not in str(caught.value)
        with pytest.raises(Unavailable, match="at most 10 at once"):
            open_place(server.url("0")).read_folder("registry", most=10)
