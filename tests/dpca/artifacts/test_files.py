"""Files of an artifact: the digest covers all of them, writes are atomic, and damaged files are refused.

Arrays are written as `zarr` writes them, and read back unchanged.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import BytesCodec
from zarr.storage import MemoryStore

from dpca.artifacts.base import Artifact
from dpca.artifacts.files import (
    known_artifact,
    read_arrays,
    read_artifact,
    remembered_artifacts,
    write_arrays,
    write_artifact,
)
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends import atomic_files
from dpca.backends.atomic_files import digest_tree, read_tree
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Invalid, Unavailable
from tests.dpca.artifacts.test_subspace import SUBSPACE, make_subspace


class TestFiles:
    def test_a_written_artifact_is_read_back_unchanged(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        read = read_artifact(LocalPlace(tmp_path), digest)
        for name in ("components", "eigenvalues", "spectrum"):
            np.testing.assert_array_equal(getattr(read, name), getattr(SUBSPACE, name), strict=True)
        assert read.manifest == SUBSPACE.manifest

    @given(
        seed=st.integers(0, 99),
        shape=st.integers(1, 9).flatmap(lambda d: st.tuples(st.integers(1, d), st.just(d))),
        n_released=st.integers(0, 9),
    )
    @settings(max_examples=15, deadline=None)
    def test_arrays_of_every_shape_are_read_back_unchanged(
        self, seed: int, shape: tuple[int, int], n_released: int
    ) -> None:
        whole = make_subspace(seed=seed, n_components=shape[0], n_features=shape[1])
        subspace = PrivateSubspace(
            components=whole.components,
            eigenvalues=whole.eigenvalues,
            spectrum=-np.arange(float(n_released)) if n_released else None,
            manifest=whole.manifest,
        )
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            read = read_artifact(LocalPlace(home), write_artifact(subspace, home=home))
        np.testing.assert_array_equal(read.components, subspace.components)
        np.testing.assert_array_equal(read.eigenvalues, subspace.eigenvalues)
        if subspace.spectrum is None:
            assert read.spectrum is None
        else:
            np.testing.assert_array_equal(read.spectrum, subspace.spectrum)

    def test_directions_without_eigenvalues_are_read_back_without_them(self, tmp_path: Path) -> None:
        alone = PrivateSubspace(components=np.eye(2, 3), manifest={})
        read = read_artifact(LocalPlace(tmp_path), write_artifact(alone, home=tmp_path))
        np.testing.assert_array_equal(read.components, alone.components)
        assert read.eigenvalues is read.spectrum is read.explained_variance_ratio is None

    def test_components_of_many_chunks_are_read_back_unchanged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dpca.artifacts.files._CHUNK_VALUES", 14)
        digest = write_artifact(SUBSPACE, home=tmp_path)
        chunks = tmp_path / "registry" / "artifacts" / digest / "subspace.zarr" / "components" / "c"
        assert sorted(path.name for path in chunks.iterdir()) == ["0", "1"]
        np.testing.assert_array_equal(read_artifact(LocalPlace(tmp_path), digest).components, SUBSPACE.components)

    def test_equal_input_gives_equal_bytes_in_another_process_at_another_time(self, tmp_path: Path) -> None:
        program = (
            "import sys, pathlib, zarr\n"
            "from tests.dpca.artifacts.test_subspace import make_subspace\n"
            "from dpca.artifacts.files import write_artifact\n"
            "zarr.config.set({'json_indent': None, 'array.write_empty_chunks': False})\n"
            "print(write_artifact(make_subspace(), home=pathlib.Path(sys.argv[1])))\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "other")]
        other = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        digest = write_artifact(SUBSPACE, home=tmp_path / "one")
        assert digest == other
        assert read_tree(tmp_path / "one" / "registry") == read_tree(tmp_path / "other" / "registry")

    def test_the_address_is_the_digest_of_the_files(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        assert digest_tree(tmp_path / "registry" / "artifacts" / digest) == digest

    def test_any_zarr_reader_opens_the_arrays(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        folder = tmp_path / "registry" / "artifacts" / digest
        group = zarr.open_group(folder / "subspace.zarr", mode="r", zarr_format=3)
        assert sorted(group.array_keys()) == ["components", "eigenvalues", "spectrum"]
        for name, array in group.arrays():
            np.testing.assert_array_equal(array[...], getattr(SUBSPACE, name))
        assert json.loads((folder / "manifest.json").read_text()) == SUBSPACE.manifest

    def test_writing_again_changes_nothing(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        assert write_artifact(SUBSPACE, home=tmp_path) == digest
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
        assert not [*(tmp_path / "staging").iterdir()]

    def test_a_damaged_artifact_is_not_reused(self, tmp_path: Path) -> None:
        digest = write_artifact(SUBSPACE, home=tmp_path)
        (tmp_path / "registry" / "artifacts" / digest / "manifest.json").write_text("{}")
        with pytest.raises(Corrupt):
            write_artifact(SUBSPACE, home=tmp_path)

    def test_bytes_that_the_disk_changed_are_not_published(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dpca.artifacts.files.read_tree", lambda root: read_tree(root) | {"manifest.json": b"{}"})
        with pytest.raises(Corrupt, match="reads back differently"):
            write_artifact(SUBSPACE, home=tmp_path)
        assert [path.name for path in tmp_path.rglob("*")] == ["staging"]

    def test_files_changed_during_publication_are_refused_and_not_cached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaged: list[Path] = []

        def damage(point: str) -> None:
            if point == "artifact.written":
                damaged.extend((tmp_path / "registry" / "artifacts").glob("*/manifest.json"))
                damaged[0].write_text("{}")

        monkeypatch.setattr(atomic_files, "hook", damage)
        with remembered_artifacts():
            with pytest.raises(Unavailable, match="does not read back as it was just written"):
                write_artifact(SUBSPACE, home=tmp_path)
            with pytest.raises(Corrupt):
                known_artifact(LocalPlace(tmp_path), damaged[0].parent.name)

    def test_verified_artifacts_are_cached_per_place_until_the_end_of_the_process(self, tmp_path: Path) -> None:
        place, other = LocalPlace(tmp_path), LocalPlace(tmp_path / "other")
        with remembered_artifacts():
            digest = write_artifact(SUBSPACE, home=tmp_path)
            assert known_artifact(place, digest) is SUBSPACE
            with pytest.raises(Corrupt):
                known_artifact(other, digest)
        found = known_artifact(place, digest)
        assert found is not SUBSPACE
        assert found.manifest == SUBSPACE.manifest
        shutil.rmtree(tmp_path / "registry")
        with pytest.raises(Corrupt):
            known_artifact(place, digest)

    def test_a_writer_killed_at_any_sync_leaves_a_complete_artifact_or_none(self, tmp_path: Path) -> None:
        program = (
            "import os, sys, pathlib, zarr\n"
            "from dpca.artifacts.files import write_artifact\n"
            "from dpca.backends.atomic_files import digest_tree\n"
            "from tests.dpca.artifacts.test_subspace import make_subspace\n"
            "subspace, root, deaths = make_subspace(), pathlib.Path(sys.argv[1]), 0\n"
            "def survive(home, syncs):\n"
            "    fsync, left = os.fsync, iter(range(syncs))\n"
            "    os.fsync = lambda fd: fsync(fd) if next(left, None) is not None else os._exit(9)\n"
            "    write_artifact(subspace, home=home)\n"
            "    os._exit(0)\n"
            "while True:\n"
            "    home = root / str(deaths)\n"
            "    child = os.fork() or survive(home, deaths)\n"
            "    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
            "    shelf = home / 'registry' / 'artifacts'\n"
            "    shown = [*shelf.iterdir()] if shelf.exists() else []\n"
            "    assert all(digest_tree(folder) == folder.name for folder in shown), shown\n"
            "    assert code == 9 or len(shown) == 1, code\n"
            "    if code == 0: break\n"
            "    deaths += 1\n"
            "print(deaths)\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        deaths = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert deaths > 15
        digests = {write_artifact(SUBSPACE, home=tmp_path / str(death)) for death in range(deaths)}
        assert len(digests) == 1

    @pytest.mark.parametrize("stranger", [{"format": 2}, {"kind": "orthogonal_tensor"}])
    def test_an_unknown_format_version_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: dict[str, Any]
    ) -> None:
        (name, value) = next(iter(stranger.items()))
        with monkeypatch.context() as future:
            known = {
                "format": "dpca.artifacts.base.FORMAT",
                "kind": "dpca.artifacts.subspace.PrivateSubspace.kind",
            }
            future.setattr(known[name], value)
            digest = write_artifact(make_subspace(), home=tmp_path)
        with pytest.raises(Invalid, match=f"{name} {value}.*upgrade"):
            read_artifact(LocalPlace(tmp_path), digest)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    home = tmp_path_factory.mktemp("home")
    return home, write_artifact(SUBSPACE, home=home)


class TestDamage:
    def test_one_flipped_bit_in_any_byte_of_any_file_is_found(self, published: tuple[Path, str]) -> None:
        home, digest = published
        for path in (home / "registry" / "artifacts" / digest).rglob("*"):
            if path.is_dir():
                continue
            sound = path.read_bytes()
            for position in range(len(sound)):
                damaged = bytearray(sound)
                damaged[position] ^= 1 << (position % 8)
                path.write_bytes(damaged)
                with pytest.raises(Corrupt):
                    read_artifact(LocalPlace(home), digest)
            path.write_bytes(sound)
        read_artifact(LocalPlace(home), digest)

    def test_a_missing_file_is_found(self, published: tuple[Path, str]) -> None:
        home, digest = published
        for path in (home / "registry" / "artifacts" / digest).rglob("*"):
            if path.is_file():
                sound = path.read_bytes()
                path.unlink()
                with pytest.raises(Corrupt):
                    read_artifact(LocalPlace(home), digest)
                path.write_bytes(sound)
        read_artifact(LocalPlace(home), digest)

    @pytest.mark.parametrize("where", [".", "subspace.zarr", "subspace.zarr/components"])
    def test_an_added_file_is_found(self, published: tuple[Path, str], where: str) -> None:
        home, digest = published
        added = home / "registry" / "artifacts" / digest / where / "added"
        added.write_bytes(b"")
        with pytest.raises(Corrupt):
            read_artifact(LocalPlace(home), digest)
        added.unlink()

    def test_a_file_of_another_length_is_found(self, published: tuple[Path, str]) -> None:
        home, digest = published
        path = home / "registry" / "artifacts" / digest / "manifest.json"
        sound = path.read_bytes()
        for damaged in (sound[:-1], sound + b"\n", b""):
            path.write_bytes(damaged)
            with pytest.raises(Corrupt):
                read_artifact(LocalPlace(home), digest)
        path.write_bytes(sound)

    def test_an_unreadable_artifact_of_another_user_is_not_reported_as_corrupt(
        self, published: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def deny(_: Path, *, most: int) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("dpca.backends.atomic_files.read_file", deny)
        with pytest.raises(Unavailable, match="Permission denied"):
            read_artifact(LocalPlace(published[0]), published[1])

    def test_a_missing_artifact_is_reported_as_corrupt_and_not_as_unknown(
        self, published: tuple[Path, str], tmp_path: Path
    ) -> None:
        shutil.copytree(published[0], tmp_path, dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "registry" / "artifacts" / published[1])
        with pytest.raises(Corrupt, match="cannot be read"):
            read_artifact(LocalPlace(tmp_path), published[1])


ARRAYS = {
    "components": np.linspace(-1, 1, 21).reshape(7, 3),
    "eigenvalues": np.array([3.5, 2.0, 1e-300]),
    "cube": np.arange(2.0 * 3 * 4).reshape(4, 3, 2).transpose(2, 1, 0),
}
DIMENSIONS = {
    "components": ("component", "feature"),
    "eigenvalues": ("component",),
    "cube": ("topic", "word", "word"),
    "absent": ("feature",),
}


def an_artifact() -> Artifact:
    return cast(Artifact, SimpleNamespace(folder="a.zarr", dimensions=DIMENSIONS, arrays=lambda: ARRAYS))


def written_by_zarr(arrays: Mapping[str, NDArray[np.float64]], chunks: Mapping[str, int]) -> dict[str, bytes]:
    stored: dict[str, Any] = {}
    with zarr.config.set({"json_indent": 2}):
        group = zarr.create_group(MemoryStore(stored), zarr_format=3)
        for name, values in arrays.items():
            group.create_array(
                name,
                data=values,
                chunks=(chunks[name], *values.shape[1:]),
                shards=None,
                filters=None,
                compressors=None,
                serializer=BytesCodec(endian="little"),
                fill_value=0.0,
                dimension_names=DIMENSIONS[name],
                config={"write_empty_chunks": True},
            )
    return {f"a.zarr/{path}": buffer.to_bytes() for path, buffer in stored.items()}


@pytest.mark.parametrize(
    ("chunk_values", "rows"),
    [
        (2**23, {"components": 7, "eigenvalues": 3, "cube": 2}),
        (10, {"components": 3, "eigenvalues": 3, "cube": 1}),
        (1, {"components": 1, "eigenvalues": 1, "cube": 1}),
    ],
)
def test_the_files_are_those_that_zarr_writes(chunk_values: int, rows: Mapping[str, int]) -> None:
    files = write_arrays(an_artifact(), chunk_values=chunk_values)
    assert files == written_by_zarr(ARRAYS, rows)
    read = read_arrays(files, cast(type[Artifact], an_artifact()))
    assert read.keys() == ARRAYS.keys()
    for name, values in read.items():
        np.testing.assert_array_equal(values, ARRAYS[name])
