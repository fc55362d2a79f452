"""Reading of a registry: consumers find, verify and load artifacts by name from the folder ``registry`` alone."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.artifacts.base import canonical_json, canonical_object
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import read_tree
from dpca.errors import Corrupt, Invalid, NotFound, Unavailable
from dpca.registry.pointers import Pointer, Reference, check_alias, check_name
from dpca.registry.reader import Registry
from tests.dpca.artifacts.test_subspace import MANIFEST, make_subspace

NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,99}", fullmatch=True)
SUBSPACES = [make_subspace(seed=seed) for seed in range(3)]


def point(home: Path, name: str, versions: dict[int, str], aliases: dict[str, int]) -> Path:
    path = home / Pointer.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Pointer(name=name, versions=versions, aliases=aliases).encode())
    return path


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Publish ``news`` with versions 1 to 12 over three artifacts, and ``other`` with one version."""
    home = tmp_path_factory.mktemp("home")
    written = [write_artifact(subspace, home=home) for subspace in SUBSPACES]
    versions = {1: written[0], 2: written[1], **{version: written[2] for version in range(3, 13)}}
    point(home, "news", versions, {"champion": 2, "also": 2, "first": 1})
    point(home, "other", {1: written[0]}, {})
    return home, written


@pytest.fixture
def home(digests: tuple[Path, list[str]]) -> Path:
    return digests[0]


def same(one: PrivateSubspace, other: PrivateSubspace) -> bool:
    return np.array_equal(one.components, other.components)


class TestReferences:
    @given(name=NAMES, version=st.integers(1, 10**9 - 1))
    def test_a_version_is_read(self, name: str, version: int) -> None:
        assert Reference.parse(f"{name}@{version}") == Reference(name=name, version=version)

    @given(name=NAMES, alias=NAMES.filter(lambda alias: alias != "latest"))
    def test_an_alias_is_read(self, name: str, alias: str) -> None:
        assert Reference.parse(f"{check_name(name)}@{check_alias(alias)}") == Reference(name=name, alias=alias)

    @given(name=NAMES, digest=st.binary(min_size=32, max_size=32).map(bytes.hex))
    def test_a_digest_is_read(self, name: str, digest: str) -> None:
        assert Reference.parse(f"{name}@sha256:{digest}") == Reference(name=name, digest=digest)

    @given(name=NAMES)
    def test_a_name_alone_means_the_latest_version(self, name: str) -> None:
        assert Reference.parse(name) == Reference.parse(f"{name}@latest") == Reference(name=name)

    @pytest.mark.parametrize(
        "text",
        [
            *("", "@", "news@", "@3", "News", "3news", "nëws", ".news", "news 1", "news\n", "n" * 101),
            *("news@0", "news@03", "news@-1", "news@1.0", "news@1x", "news@" + "9" * 10, "news@\u0663"),
            *("news@@2", "news@1@2", "news@Champion", "../news", "a/b", "news@../x"),
            *("news@sha256:", "news@sha256:abc", "news@sha256:" + "A" * 64),
        ],
    )
    def test_other_references_are_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(Invalid, match="name@3, name@alias") as caught:
            Reference.parse(text)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("alias", ["latest", "3", "3a", "", "Champion", "a b", "a/b", "sha256:0"])
    def test_ambiguous_aliases_are_refused(self, alias: str) -> None:
        with pytest.raises(Invalid, match="alias"):
            check_alias(alias)

    @pytest.mark.parametrize("name", ["", "3", "News", "a@1", "../a", "a/b", "a" * 101])
    def test_bad_names_are_refused(self, name: str) -> None:
        with pytest.raises(Invalid, match="name"):
            check_name(name)


class TestPointers:
    @given(
        numbered=st.dictionaries(st.integers(1, 10**6), st.integers(0, 2**256 - 1), min_size=1, max_size=5),
        aliases=st.dictionaries(st.sampled_from(["champion", "also"]), st.integers(1, 3)),
        marked=st.booleans(),
    )
    def test_json_written_in_parts_is_canonical(
        self, *, numbered: dict[int, int], aliases: dict[str, int], marked: bool
    ) -> None:
        versions = {version: f"{digest:064x}" for version, digest in numbered.items()}
        not_private = frozenset(versions) if marked else frozenset()
        made = Pointer(name="news", versions=versions, aliases=aliases, not_private=not_private)
        facts = made.facts()
        assert canonical_object(made.members) == canonical_json(facts)
        checksum = hashlib.sha256(canonical_json(facts)).hexdigest()
        assert made.encode() == canonical_json({**facts, "checksum": checksum})

    @pytest.mark.parametrize(
        "digests",
        [["A" * 64], ["g" * 64], ["a" * 62 + "  "], ["a" * 62, "a" * 66], ["a" * 63, "a" * 65], ["\uff11" * 64], [""]],
    )
    def test_a_digest_is_64_small_hex_digits(self, digests: list[str]) -> None:
        content = {"versions": {str(1 + at): digest for at, digest in enumerate(digests)}, "aliases": {}}
        assert Pointer.from_facts("news", content) is None
        sound = {"versions": {"1": "0123456789abcdef" * 4}, "aliases": {}}
        assert Pointer.from_facts("news", sound) is not None


class TestResolve:
    @pytest.mark.parametrize(
        ("reference", "version"),
        [
            ("news", 12),
            ("news@latest", 12),
            ("news@1", 1),
            ("news@2", 2),
            ("news@champion", 2),
            ("news@first", 1),
        ],
    )
    def test_a_reference_means_one_version(self, digests: tuple[Path, list[str]], reference: str, version: int) -> None:
        resolved = Registry.open(digests[0]).resolve(reference)
        assert (resolved.name, resolved.version, str(resolved)) == ("news", version, f"news@{version}")
        assert resolved.digest == digests[1][min(version, 3) - 1]
        assert resolved.aliases == {1: ("first",), 2: ("also", "champion")}.get(version, ())

    def test_a_digest_refers_to_the_highest_version_with_this_digest(self, digests: tuple[Path, list[str]]) -> None:
        registry = Registry.open(digests[0])
        found = [registry.resolve(f"news@sha256:{digest}").version for digest in digests[1]]
        assert found == [1, 2, 12]

    def test_the_list_has_every_version_in_order(self, home: Path) -> None:
        registry = Registry.open(home)
        assert [*registry.names()] == ["news", "other"]
        assert [str(row) for row in registry.list()] == [f"news@{v}" for v in range(1, 13)] + ["other@1"]
        assert [str(row) for row in registry.list(newest=2)] == ["news@11", "news@12", "other@1"]
        assert [str(row) for row in registry.list("news", newest=1)] == ["news@12"]

    @pytest.mark.parametrize(
        ("reference", "reported"),
        [
            ("mews", "'mews'.*news, other"),
            ("news@13", "no version 13; versions 1 to 12 exist"),
            ("news@winner", "no alias 'winner'; it has also, champion, first"),
            ("other@winner", "no alias 'winner'; it has none"),
            ("other@sha256:" + "0" * 64, "no version of digest 0000"),
        ],
    )
    def test_an_unknown_reference_is_answered_with_the_existing_ones(
        self, home: Path, reference: str, reported: str
    ) -> None:
        registry = Registry.open(home)
        for use in (registry.resolve, registry.load, registry.show, registry.verify):
            with pytest.raises(NotFound, match=reported) as caught:
                use(reference)
            assert "\n" not in str(caught.value)

    def test_an_empty_home_has_no_names(self, tmp_path: Path) -> None:
        registry = Registry.open(tmp_path / "nowhere")
        assert not registry.names()
        assert not registry.list()
        with pytest.raises(NotFound, match="which has none"):
            registry.load("news")

    def test_the_default_is_the_home_of_the_environment(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DPCA_HOME", str(home))
        assert Registry.open() == Registry.open(home) == Registry.open(str(home))

    @pytest.mark.parametrize(
        "content",
        [
            [],
            {"versions": {}, "aliases": {}},
            {"versions": {"1": "a"}},
            {"versions": {"1": "a"}, "aliases": {"champion": 2}},
            {"versions": {"01": "a"}, "aliases": {}},
            {"versions": {"one": "a"}, "aliases": {}},
            {"versions": ["a"], "aliases": {}},
            {"versions": {"1": "a"}, "aliases": {}, "more": 1},
        ],
    )
    def test_a_pointer_file_of_another_form_is_named(self, tmp_path: Path, content: object) -> None:
        point(tmp_path, "news", {1: "a" * 64}, {}).write_bytes(canonical_json(content))
        for use in (Registry.open(tmp_path).load, Registry.open(tmp_path).resolve):
            with pytest.raises(Corrupt, match=r"news\.json is damaged"):
                use("news")

    def test_a_pointer_file_cut_short_is_named(self, tmp_path: Path) -> None:
        path = point(tmp_path, "news", {1: "a" * 64}, {"champion": 1})
        sound = path.read_bytes()
        for length in range(len(sound)):
            path.write_bytes(sound[:length])
            with pytest.raises(Corrupt, match="damaged"):
                Registry.open(tmp_path).resolve("news")

    def test_an_unreadable_pointer_is_not_reported_as_unknown(self, tmp_path: Path) -> None:
        (tmp_path / Pointer.path("news")).mkdir(parents=True)
        with pytest.raises(Unavailable, match=r"news\.json cannot be read"):
            Registry.open(tmp_path).load("news")

    def test_a_killed_publisher_of_pointers_leaves_no_name(self, tmp_path: Path) -> None:
        path = point(tmp_path, "news", {1: "a" * 64}, {})
        path.rename(path.with_name(".0123.tmp"))
        assert not Registry.open(tmp_path).names()


class TestLoad:
    @pytest.mark.parametrize(("reference", "seed"), [("news", 2), ("news@1", 0), ("news@champion", 1), ("other", 0)])
    def test_the_published_subspace_is_loaded(self, home: Path, reference: str, seed: int) -> None:
        assert same(Registry.open(home).load(reference), SUBSPACES[seed])

    def test_the_folder_registry_alone_suffices_for_a_consumer(self, home: Path, tmp_path: Path) -> None:
        shutil.copytree(home / "registry", tmp_path / "registry")
        registry = Registry.open(tmp_path)
        assert same(registry.load("news@champion"), SUBSPACES[1])
        assert registry.show("news@champion") == Registry.open(home).show("news@champion")
        assert [path.name for path in tmp_path.iterdir()] == ["registry"]

    @pytest.mark.parametrize("use", ["load", "verify", "show", "export"])
    def test_every_use_fails_on_a_flipped_bit_in_any_file(
        self, digests: tuple[Path, list[str]], tmp_path: Path, use: str
    ) -> None:
        shutil.copytree(digests[0] / "registry", tmp_path / "registry")
        registry, output = Registry.open(tmp_path), tmp_path / "out.npz"
        arguments = ("news@1", output) if use == "export" else ("news@1",)
        for path in (tmp_path / "registry" / "artifacts" / digests[1][0]).rglob("*"):
            if path.is_file():
                sound = path.read_bytes()
                path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
                with pytest.raises(Corrupt):
                    getattr(registry, use)(*arguments)
                path.write_bytes(sound)
        assert not output.exists()
        getattr(registry, use)(*arguments)

    def test_other_artifacts_are_untouched_by_a_damaged_one(
        self, digests: tuple[Path, list[str]], tmp_path: Path
    ) -> None:
        shutil.copytree(digests[0] / "registry", tmp_path / "registry")
        shutil.rmtree(tmp_path / "registry" / "artifacts" / digests[1][0])
        registry = Registry.open(tmp_path)
        with pytest.raises(Corrupt):
            registry.load("news@1")
        assert registry.verify("news@2").digest == digests[1][1]

    def test_an_artifact_exchanged_for_another_is_detected(
        self, digests: tuple[Path, list[str]], tmp_path: Path
    ) -> None:
        shutil.copytree(digests[0] / "registry", tmp_path / "registry")
        shelf = tmp_path / "registry" / "artifacts"
        shutil.rmtree(shelf / digests[1][0])
        (shelf / digests[1][1]).rename(shelf / digests[1][0])
        with pytest.raises(Corrupt, match="has digest"):
            Registry.open(tmp_path).load("news@1")

    def test_consumers_import_few_packages(self, home: Path) -> None:
        program = (
            "import sys\n"
            "from dpca.registry.reader import Registry\n"
            "heavy = 'sqlalchemy alembic dp_accounting matplotlib numba dask prefect flows dpca_tasks zarr'\n"
            "assert not [name for name in heavy.split() if name in sys.modules], sys.modules.keys()\n"
            "Registry.open(sys.argv[1]).load('news@champion').transform([[1.0] * 7])\n"
            "assert not [name for name in heavy.split() if name in sys.modules], sys.modules.keys()\n"
        )
        subprocess.run([sys.executable, "-c", program, str(home)], check=True)


class TestShow:
    def test_public_facts_are_reported(self, digests: tuple[Path, list[str]]) -> None:
        shown = Registry.open(digests[0]).show("news@champion")
        assert json.loads(json.dumps(shown)) == shown
        reported: dict[str, Any] = {
            "artifact": "news@2",
            "private": True,
            "headline": "3 components of 7 features",
            "digest": digests[1][1],
            "aliases": ["also", "champion"],
            "release": MANIFEST["release"],
            "mechanism": "analyze_gauss",
            "relation": "add_remove",
            "epsilon": 1.0,
            "delta": 1e-6,
            "statement": "(1, 1e-6)-differential privacy when one record (`record`) is added or removed",
            "noise_multiplier": 4.2,
            "clip_norm": 3.5,
            "n_components": 3,
            "n_features": 7,
            "eigenvalues": np.asarray(SUBSPACES[1].eigenvalues).tolist(),
            "lineage": {
                "release": MANIFEST["release"],
                "mechanism": "analyze_gauss",
                "code_version": "0.1.0",
                "parent": None,
            },
            "manifest": SUBSPACES[1].manifest,
        }
        assert shown == reported

    def test_undeclared_facts_are_none(self, tmp_path: Path) -> None:
        bare = PrivateSubspace(components=np.eye(1, 2), manifest={})
        point(tmp_path, "bare", {1: write_artifact(bare, home=tmp_path)}, {})
        shown = Registry.open(tmp_path).show("bare")
        assert shown["epsilon"] is shown["noise_multiplier"] is shown["lineage"]["release"] is None
        assert shown["eigenvalues"] is None


class TestExport:
    def test_an_archive_holds_the_arrays_and_the_manifest(self, home: Path, tmp_path: Path) -> None:
        resolved = Registry.open(home).export("news@champion", tmp_path / "out.npz", format="npz")
        assert str(resolved) == "news@2"
        with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
            assert sorted(archive) == ["components", "eigenvalues", "manifest", "spectrum"]
            for name in ("components", "eigenvalues", "spectrum"):
                np.testing.assert_array_equal(archive[name], getattr(SUBSPACES[1], name))
            assert json.loads(archive["manifest"].item()) == SUBSPACES[1].manifest

    def test_an_archive_without_more_eigenvalues_has_no_spectrum(self, tmp_path: Path) -> None:
        bare = PrivateSubspace(components=np.eye(1, 2), eigenvalues=np.ones(1), manifest={})
        point(tmp_path, "bare", {1: write_artifact(bare, home=tmp_path)}, {})
        Registry.open(tmp_path).export("bare", tmp_path / "bare.npz")
        with np.load(tmp_path / "bare.npz") as archive:
            assert sorted(archive) == ["components", "eigenvalues", "manifest"]

    def test_an_archive_holds_every_array_that_an_artifact_may_have(self, tmp_path: Path) -> None:
        basis, values = np.eye(3, 4), np.array([3.0, 2.0, 1.0])
        given = {"eigenvalues": values[:2], "spectrum": values, "further": basis[2:], "mean": np.arange(4.0)}
        given |= {"leading": basis, "matrix": np.arange(10.0), "answers": np.arange(15.0)}
        given |= {"map_directions": np.ones((2, 4)), "map_reductions": np.zeros((2, 4))}
        full = PrivateSubspace(components=basis[:2], **given, manifest={"feature_names": ["a", "b", "c", "d"]})
        point(tmp_path, "full", {1: write_artifact(full, home=tmp_path)}, {})
        Registry.open(tmp_path).export("full", tmp_path / "full.npz")
        fields = set(PrivateSubspace.__slots__) - {"manifest"}
        with np.load(tmp_path / "full.npz") as archive:
            assert set(archive) == {*fields, "manifest"}
            assert all(np.array_equal(archive[name], getattr(full, name)) for name in fields)
            assert json.loads(archive["manifest"].item())["feature_names"] == ["a", "b", "c", "d"]

    def test_equal_artifacts_give_equal_bytes(self, home: Path, tmp_path: Path) -> None:
        for name in ("one", "two"):
            Registry.open(home).export("news@1", str(tmp_path / name))
        Registry.open(home).export("other", tmp_path / "two")
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]

    def test_a_model_is_a_file_or_a_new_folder_with_its_lineage(self, home: Path, tmp_path: Path) -> None:
        registry = Registry.open(home)
        for name in ("one", "two"):
            resolved = registry.export("news@champion", tmp_path / f"{name}.onnx", format="onnx")
            registry.export("news@champion", tmp_path / name, format="mlflow")
        assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
        assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
        tags = json.loads((tmp_path / "one" / "tags.json").read_text())
        assert (tags["dpca.artifact"], tags["dpca.digest"]) == ("news@2", f"sha256:{resolved.digest}")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.onnx", "two", "two.onnx"]
        with pytest.raises(Invalid, match="a new folder"):
            registry.export("news@champion", tmp_path / "one", format="mlflow")

    @pytest.mark.parametrize(
        ("output", "form", "reported"),
        [
            ("out", "hdf5", "'hdf5' is unknown; a subspace has npz, onnx, mlflow, sklearn"),
            ("", "mlflow", "a new folder"),
            ("no/out", "mlflow", "a new folder"),
            ("no/out", "npz", "existing folder"),
            ("", "npz", "a file"),
        ],
    )
    def test_unsupported_export_formats_are_refused(
        self, home: Path, tmp_path: Path, output: str, form: str, reported: str
    ) -> None:
        with pytest.raises(Invalid, match=reported):
            Registry.open(home).export("news", tmp_path / output, format=form)
        assert not [*tmp_path.iterdir()]

    def test_a_place_that_cannot_be_written_is_named(self, home: Path, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="no file was written"):
            Registry.open(home).export("news", tmp_path / ("x" * 300))
        assert not [*tmp_path.iterdir()]
