"""Trust in a registry with a pinned root key: unsigned, revoked or outdated content is refused.

Content must be signed by a publisher whose key is valid, and must not be older than what the consumer has seen. A
consumer stores the keys that it pinned and the newest content that it saw. Each field of each signed file is forged.
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import write_artifact
from dpca.backends.atomic_files import digest_files
from dpca.backends.base import Stored
from dpca.backends.local import LocalPlace, open_place, open_published
from dpca.errors import Conflict, Corrupt, NotFound, Refused, StorageError
from dpca.registry import trust as trust_module
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca.registry.roots import SIGNED_FOLDER, Root, SignedPointer, sign, signature_path
from dpca.registry.trust import Trust, pin, pinned
from storage.registry.signing import Signer, update_root
from tests.forger import forgeries
from tests.s3 import Server
from tests.storage.registry.conftest import (
    NAME,
    PINNED,
    ROOT_KEY,
    Publication,
    consumer,
    files,
    key_of,
    numbered,
    publication,
    put_back,
    refusal,
    subspace,
)
from tests.web_server import issue, serve_folder

SIGNED, PLAIN = SignedPointer.path(NAME), Pointer.path(NAME)


@dataclass
class InMemory:
    """An in-memory registry whose files can be changed one bit at a time."""

    lists: ClassVar[bool] = True
    address: ClassVar[str] = "memory"
    held: dict[str, bytes] = field(default_factory=dict)

    def at(self, path: str) -> str:
        return path

    def read(self, path: str, *, most: int = 0) -> Stored:
        if path not in self.held:
            raise FileNotFoundError(path)
        return Stored(self.held[path])

    def names(self, folder: str) -> list[str]:
        return sorted(path.removeprefix(f"{folder}/") for path in self.held if path.startswith(f"{folder}/"))

    def read_folder(self, folder: str, *, most: int = 0) -> dict[str, bytes]:
        return {path: self.held[f"{folder}/{path}"] for path in self.names(folder)}


@pytest.fixture
def memory(made: Publication) -> InMemory:
    """Copy a published registry into memory."""
    folder = Path(made.place.address)
    paths = [path for path in (folder / "registry").rglob("*") if path.is_file()]
    return InMemory({str(path.relative_to(folder)): path.read_bytes() for path in paths})


class TestEveryBit:
    @pytest.mark.parametrize("kind", ["pointer", "signed pointer", "root", "signature", "manifest"])
    def test_flipped_bit_is_refused_in_one_line(self, memory: InMemory, made: Publication, kind: str) -> None:
        digest = made.versions[1]
        path = {
            "pointer": PLAIN,
            "signed pointer": SIGNED,
            "root": Root.path(1),
            "signature": signature_path(digest),
            "manifest": f"registry/artifacts/{digest}/manifest.json",
        }[kind]
        place: Any = memory
        registry = Registry(place, Trust(keys=(PINNED,), memory=Forgetful()))  # type: ignore[arg-type]
        sound = memory.held[path]
        assert registry.load(NAME).n_components == 2
        read = registry.resolve if "pointer" in kind else registry.load
        for bit in range(8 * len(sound)):
            changed = bytearray(sound)
            changed[bit // 8] ^= 1 << bit % 8
            memory.held[path] = bytes(changed)
            with pytest.raises((Corrupt, Refused)) as caught:
                read(NAME)
            assert "\n" not in str(caught.value)
        memory.held[path] = sound
        assert registry.load(NAME).n_components == 2


class Forgetful:
    """A stub of the consumer's memory that stores nothing, so that each bit flip is checked independently."""

    def root(self) -> None:
        return None

    def pointer(self, name: str) -> None:
        return None

    def note_root(self, root: Root) -> None:
        pass

    def note_pointer(self, name: str, seen: object) -> None:
        pass


class TestForgeries:
    def test_a_forged_epsilon_with_recomputed_digests_is_refused(self, made: Publication) -> None:
        registry = consumer(made)
        assert registry.load(NAME).manifest["privacy"]["epsilon"] == 1.0
        folder = f"registry/artifacts/{made.versions[1]}"
        held = made.place.read_folder(folder)
        manifest = json.loads(held["manifest.json"])
        manifest["privacy"]["epsilon"] = 0.01
        held["manifest.json"] = canonical_json(manifest)
        put_back(made.place, {f"{folder}/manifest.json": held["manifest.json"]})
        assert "has digest" in refusal(registry)
        forged = digest_files(held)
        put_back(made.place, {f"registry/artifacts/{forged}/{path}": payload for path, payload in held.items()})
        put_back(made.place, {PLAIN: Pointer(name=NAME, versions={1: forged}, aliases={}).encode()})
        assert "differs from the signed one" in refusal(registry)
        attacker = Signer(keys=made.home / "attacker")
        pointer = Pointer(name=NAME, versions={1: forged}, aliases={})
        attacker.write(made.place, pointer, over=None, before=None, plain=pointer.encode(), number=9)
        assert "which is not a publisher's key" in refusal(registry)
        assert Registry.open(made.place.address).load(NAME).manifest["privacy"]["epsilon"] == 0.01

    def test_arrays_exchanged_between_two_versions_are_refused(self, made: Publication) -> None:
        made.publish(epsilon=2.0)
        registry = consumer(made)
        one, two = (f"registry/artifacts/{made.versions[version]}" for version in (1, 2))
        first, second = (made.place.read_folder(folder) for folder in (one, two))
        chunk = "subspace.zarr/components/c/0/0"
        assert first[chunk] != second[chunk]
        put_back(made.place, {f"{one}/{chunk}": second[chunk], f"{two}/{chunk}": first[chunk]})
        for version in (1, 2):
            assert "has digest" in refusal(registry, f"{NAME}@{version}")

    def test_versions_exchanged_in_the_pointer_are_refused(self, made: Publication) -> None:
        made.publish(epsilon=2.0)
        registry = consumer(made)
        exchanged = {1: made.versions[2], 2: made.versions[1]}
        put_back(made.place, {PLAIN: Pointer(name=NAME, versions=exchanged, aliases={}).encode()})
        assert "differs from the signed one" in refusal(registry)

    def test_the_pointer_of_another_name_is_refused(self, made: Publication) -> None:
        made.publish(name="other", epsilon=2.0)
        registry = consumer(made)
        put_back(
            made.place,
            {
                SIGNED: made.place.read(SignedPointer.path("other")).payload,
                PLAIN: made.place.read("registry/names/other.json").payload,
            },
        )
        assert "has another name" in refusal(registry)

    @pytest.mark.parametrize("field", ["now", "before", "expires"])
    @pytest.mark.parametrize("junk", [3, True, 1.5, [], {"a": 1}], ids=str)
    def test_a_malformed_pointer_of_an_unknown_publisher_is_refused_in_one_line(
        self, made: Publication, field: str, junk: object
    ) -> None:
        message = json.loads(made.place.read(SIGNED).payload)["signed"] | {field: junk}
        put_back(made.place, {SIGNED: sign(message, role="pointer", keys=[key_of(9)])})
        assert "is damaged, or has another name" in refusal(consumer(made))

    def test_a_name_that_was_not_delegated_is_refused(self, publishers_home: Path) -> None:
        made = publication(publishers_home, LocalPlace(publishers_home), names=["news", "map-*"])
        made.publish(name="map-north", epsilon=2.0)
        made.publish(name="other", epsilon=3.0)
        registry = consumer(made)
        assert registry.load("map-north@2").manifest["privacy"]["epsilon"] == 2.0
        assert "may not publish 'other'" in refusal(registry, "other")

    def test_an_artifact_without_a_signature_of_a_valid_key_is_refused(self, made: Publication) -> None:
        path = signature_path(made.versions[1])
        put_back(made.place, {path: sign({"artifact": made.versions[1]}, role="artifact", keys=[key_of(9)])})
        assert "not a publisher's key" in refusal(consumer(made))
        put_back(made.place, {path: sign({"artifact": "0" * 64}, role="artifact", keys=[key_of(9)])})
        assert "is not a valid signature" in refusal(consumer(made))
        (made.home / path).unlink()
        assert "has no signature" in refusal(consumer(made))

    def test_an_unsigned_registry_is_refused_after_a_root_is_pinned(self, publishers_home: Path) -> None:
        digest = write_artifact(subspace(), home=publishers_home)
        put_back(LocalPlace(publishers_home), {PLAIN: Pointer(name=NAME, versions={1: digest}, aliases={}).encode()})
        assert "has no root signed by the pinned key" in refusal(Registry.open(publishers_home, trust=PINNED))

    def test_a_name_without_a_signature_among_signed_ones_is_refused(self, made: Publication) -> None:
        put_back(
            made.place, {Pointer.path("plain"): Pointer(name="plain", versions=made.versions, aliases={}).encode()}
        )
        assert "is not signed" in refusal(consumer(made), "plain")
        with pytest.raises(Refused, match="is not signed"):
            consumer(made).list()

    def test_a_name_that_is_not_there_is_not_found(self, made: Publication) -> None:
        with pytest.raises(NotFound, match="does not exist in"):
            consumer(made).load("missing")


class TestExpiry:
    def test_expiry_is_off_by_default(self, made: Publication) -> None:
        assert json.loads(made.place.read(SIGNED).payload)["signed"]["expires"] is None

    def test_an_expired_pointer_is_refused(self, made: Publication, monkeypatch: pytest.MonkeyPatch) -> None:
        made.signer = Signer(keys=made.signer.keys, days=1)
        made.point()
        assert consumer(made).resolve(NAME).version == 1

        class Later(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return super().now(tz) + timedelta(days=2)

        monkeypatch.setattr(trust_module, "datetime", Later)
        assert "expired at" in refusal(consumer(made))


@pytest.fixture(params=["https", "s3"])
def elsewhere(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    publishers_home: Path,
    s3_server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Publication, str]]:
    """Yield a published registry, and the https or s3 address at which a consumer reads it."""
    if request.param == "s3":
        s3_server.enter(monkeypatch)
        address = s3_server.url(tmp_path.name)
        yield publication(publishers_home, open_place(address)), address
        return
    tls = issue(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca))
    made = publication(publishers_home, LocalPlace(publishers_home))
    with serve_folder(publishers_home, tls=tls) as web:
        yield made, f"{web.url}/registry"


def test_forgeries_are_refused_over_a_network_too(elsewhere: tuple[Publication, str]) -> None:
    made, address = elsewhere
    before = files(made.place, SIGNED_FOLDER, "registry/names")
    made.publish(epsilon=2.0)
    registry = Registry.open(address, trust=PINNED)
    assert registry.load(NAME).manifest["privacy"]["epsilon"] == 2.0
    newest = files(made.place, SIGNED_FOLDER, "registry/names")
    put_back(made.place, before)
    assert "was seen before" in refusal(Registry.open(address, trust=PINNED))
    put_back(made.place, newest)
    put_back(made.place, {SIGNED: newest[SIGNED].replace(b"a", b"b", 1)})
    assert "damaged" in refusal(Registry.open(address, trust=PINNED))
    put_back(made.place, newest)
    update_root(made.place, [ROOT_KEY], revoke=[made.publisher])
    assert "was revoked" in refusal(Registry.open(address, trust=PINNED))
    assert open_published(address).address == Registry.open(address, trust=PINNED).place.address


def test_every_refusal_is_an_error_of_the_storage() -> None:
    assert issubclass(Refused, StorageError)
    assert issubclass(Corrupt, StorageError)


REMEMBERED_SIGNED, REMEMBERED_PLAIN = SignedPointer.path(NAME), Pointer.path(NAME)


class TestRollBack:
    @pytest.mark.parametrize(
        ("folders", "line"),
        [
            ((SIGNED_FOLDER, "registry/names"), "the publisher must run `dpca registry resign --above 2`"),
            ((SIGNED_FOLDER,), "differs from the signed one, so it was changed or replaced by an older file"),
            (("registry/names",), "a pointer file never returns to an older state"),
        ],
        ids=["both", "signed", "names"],
    )
    def test_restored_older_files_are_refused_even_by_a_new_process(
        self, made: Publication, folders: tuple[str, ...], line: str
    ) -> None:
        before = files(made.place, *folders)
        made.publish(epsilon=2.0)
        assert consumer(made).resolve(NAME).version == 2
        put_back(made.place, before)
        assert line in refusal(consumer(made))
        program = (
            "import sys\nfrom dpca.errors import StorageError\nfrom dpca.registry import Registry\n"
            "try:\n    Registry.open(sys.argv[1], trust=sys.argv[2]).resolve(sys.argv[3])\n"
            "except StorageError as error:\n    print(error)\n"
        )
        command = [sys.executable, "-c", program, made.place.address, PINNED, NAME]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert line in done.stdout
        assert done.stderr == ""

    def test_a_restored_older_root_is_refused(self, made: Publication) -> None:
        update_root(made.place, [ROOT_KEY], revoke=[made.publisher])
        assert "was revoked" in refusal(consumer(made))
        (made.home / Root.path(2)).unlink()
        assert "was revoked in version 2" in refusal(consumer(made))

    def test_other_content_under_a_known_version_number_is_refused(self, made: Publication) -> None:
        consumer(made).resolve(NAME)
        found = SignedPointer.decode(NAME, made.place.read(REMEMBERED_SIGNED).payload)
        other = replace(found, pointer=replace(found.pointer, aliases={"champion": 1}))
        put_back(made.place, {REMEMBERED_SIGNED: other.sign(made.signer.key(made.place))})
        assert "differs from the pointer with number 1" in refusal(consumer(made))

    def test_consumers_can_read_while_a_publisher_writes(self, made: Publication) -> None:
        registry = consumer(made)
        registry.resolve(NAME)
        made.publish(epsilon=2.0, plain=False)
        assert registry.resolve(NAME).version == 2
        made.point()
        assert registry.resolve(NAME).version == 2

    def test_a_restored_publisher_continues_above_the_versions_that_consumers_saw(self, made: Publication) -> None:
        for _ in range(5):
            made.point()
        consumer(made).resolve(NAME)
        over = made.place.read(REMEMBERED_SIGNED)
        pointer = Pointer(name=NAME, versions=made.versions, aliases={})
        write = made.signer.write
        write(made.place, pointer, over=over, before=None, plain=pointer.encode(), number=2)
        assert "--above 6" in refusal(consumer(made))
        write(made.place, pointer, over=over, before=None, plain=pointer.encode(), number=7)
        assert consumer(made).resolve(NAME).version == 1

    def test_content_that_returns_is_not_taken_for_a_complete_write(
        self, made: Publication, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Read a pointer file just before content A, B and again A are written: B is then on the disk for a while."""
        plain = []
        for aliases in ({}, {"champion": 1}, {}):
            made.point(aliases=aliases)
            plain.append(made.place.read(Pointer.path(NAME)).payload)
        assert plain[0] == plain[2] != plain[1]
        signed, read = made.place.read(REMEMBERED_SIGNED).payload, trust_module._read

        def resolve_with(*contents: bytes) -> None:
            left = {Pointer.path(NAME): list(contents), REMEMBERED_SIGNED: [signed]}
            with monkeypatch.context() as patch:
                patch.setattr(
                    trust_module,
                    "_read",
                    lambda place, path, **_: left[path].pop(0) if path in left else read(place, path),
                )
                assert consumer(made).resolve(NAME).version == 1

        resolve_with(plain[0], plain[1])  # before B was written, and after it
        resolve_with(plain[1])
        resolve_with(plain[2], plain[2])
        with pytest.raises(Refused, match="never returns to an older state"):
            resolve_with(plain[1])

    def test_two_consumers_at_once_remember_the_newer(self, made: Publication) -> None:
        def consume(_: int) -> int:
            return consumer(made).resolve(NAME).version

        def write() -> None:
            for number in range(20):
                made.point(aliases={"champion": 1} if number % 2 else {})

        with ThreadPoolExecutor(max_workers=5) as pool:
            writing = pool.submit(write)
            versions = [*pool.map(consume, range(40))]
            writing.result()
        assert set(versions) == {1}
        consume(0)
        seen = consumer(made).trust
        assert seen is not None
        remembered = seen.memory.pointer(NAME)
        assert remembered is not None
        assert (remembered.number, remembered.complete) == (numbered(made.place), True)

    def test_a_missing_state_folder_is_reported_once_and_signatures_are_checked(
        self, made: Publication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "file" / "state"))
        for _ in range(2):
            assert consumer(made).resolve(NAME).version == 1
        message = [record.getMessage() for record in caplog.records]
        assert len(message) == 1
        assert "not stored" in message[0]
        assert "\n" not in message[0]
        put_back(made.place, {REMEMBERED_PLAIN: b"{}"})
        assert "differs from the signed one" in refusal(consumer(made))


class TestPins:
    def test_pins_are_found_again_for_the_same_address(self, made: Publication) -> None:
        pin(made.place.address, [PINNED], replace=False)
        assert pinned(made.place.address) == (PINNED,)
        registry = Registry.open(made.home)
        assert registry.trust is not None
        assert pickle.loads(pickle.dumps(registry)).load(NAME).n_components == 2
        with pytest.raises(Conflict, match="--replace"):
            pin(made.place.address, ["0" * 64], replace=False)
        pin(made.place.address, ["0" * 64], replace=True)
        assert "has no root signed" in refusal(Registry.open(made.home))

    def test_pins_apply_to_every_spelling_of_an_address(self, made: Publication, tmp_path: Path) -> None:
        pin(made.place.address, [PINNED], replace=False)
        (tmp_path / "link").symlink_to(made.home)
        for spelled in (tmp_path / "link", made.home.parent / "x" / ".." / made.home.name, f"/{made.home}"):
            assert Registry.open(spelled).trust is not None, spelled
        pin("https://Host:443/of", [PINNED], replace=False)
        assert pinned("https://host/of") == pinned("HTTPS://HOST/of") == (PINNED,)
        assert pinned("https://host/Of") == pinned("http://host/of") == pinned("https://host:8443/of") == ()

    @pytest.mark.parametrize("seen", [{"number": None}, {"number": "3"}, {"complete": "x"}, {"digest": 3}], ids=str)
    def test_a_damaged_memory_is_refused_in_one_line(
        self, made: Publication, state: Path, seen: dict[str, object]
    ) -> None:
        consumer(made).resolve(NAME)
        (path,) = (state / "registries").rglob("name-*.json")
        path.write_text(json.dumps(json.loads(path.read_bytes()) | seen))
        with pytest.raises(Corrupt, match="is damaged"):
            consumer(made).resolve(NAME)

    def test_pins_are_required_if_a_setting_requests_them(
        self, made: Publication, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(Refused, match="no root key is pinned"):
            Registry.open(made.home, require_signature=True)
        monkeypatch.setenv("DPCA_REQUIRE_SIGNATURE", "true")
        with pytest.raises(Refused, match="no root key is pinned"):
            Registry.open(made.home)
        assert Registry.open(made.home, require_signature=False).load(NAME).n_components == 2
        assert consumer(made).load(NAME).n_components == 2

    def test_a_registry_without_a_pin_loads_with_one_line_of_warning(
        self, made: Publication, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            assert Registry.open(made.home).load(NAME).n_components == 2
        message = [record.getMessage() for record in caplog.records]
        assert len(message) == 1
        assert "without a pinned root key" in message[0]
        assert "\n" not in message[0]

    def test_a_registry_that_cannot_be_read_is_refused_without_a_warning_before_it(
        self, made: Publication, caplog: pytest.LogCaptureFixture
    ) -> None:
        (made.home / Pointer.path(NAME)).write_bytes(b"[]")
        with pytest.raises(Corrupt, match="pointer file"):
            Registry.open(made.home).load(NAME)
        assert caplog.records == []

    def test_damaged_pins_are_refused(self, made: Publication, state: Path) -> None:
        pin(made.place.address, [PINNED], replace=False)
        path = next((state / "registries").glob("*.json"))
        path.write_bytes(b"[]")
        with pytest.raises(Corrupt, match="is damaged"):
            Registry.open(made.home)


def is_refused(folder: Path) -> bool:
    """Return whether a changed registry is refused in one line."""
    registry = Registry(LocalPlace(folder), Trust(keys=(PINNED,), memory=Forgetful()))  # type: ignore[arg-type]
    try:
        registry.load(f"{NAME}@1")
    except StorageError as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_registry_is_refused_in_one_line(tmp_path: Path) -> None:
    made, other = (publication(tmp_path / name, LocalPlace(tmp_path / name)) for name in ("one", "other"))
    made.publish(epsilon=2.0)
    other.publish(epsilon=3.0)
    one, two = tmp_path / "one", tmp_path / "other"
    digest = made.versions[1]
    artifact = f"registry/artifacts/{digest}"
    paths = [Pointer.path(NAME), SignedPointer.path(NAME), Root.path(1), signature_path(digest)]
    of_another = {path: path for path in paths} | {signature_path(digest): signature_path(made.versions[2])}
    accepted: list[str] = []
    for path in [*paths, f"{artifact}/manifest.json"]:
        honest = (one / path).read_bytes()
        there = one if path.startswith(("registry/artifacts", "registry/signatures")) else two
        valid = there / of_another.get(path, path.replace(digest, made.versions[2]))
        for kind, forged in forgeries(json.loads(honest), json.loads(valid.read_bytes())):
            (one / path).write_text(json.dumps(forged, sort_keys=True, indent=2) + "\n")
            accepted += [] if is_refused(one) else [f"{path}: {kind}"]
        (one / path).write_bytes(valid.read_bytes())
        accepted += [] if is_refused(one) or valid.read_bytes() == honest else [f"{path}: replaced"]
        (one / path).unlink()
        accepted += [] if is_refused(one) else [f"{path}: dropped"]
        (one / path).write_bytes(honest)
    assert accepted == []
    assert not is_refused(one)
