"""What a consumer remembers: the keys that it pinned, and the newest that it saw, behind which nobody goes back."""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import Conflict, Corrupt, Refused
from storage.registry.pointers import Pointer
from storage.registry.reader import Registry
from storage.registry.remembered import pin, pinned
from storage.registry.root_keys import update_root
from storage.registry.roots import Root
from storage.registry.signed_pointers import FOLDER, SignedPointer
from tests.storage.registry.signed_registries import (
    NAME,
    PINNED,
    ROOT_KEY,
    Publication,
    consumer,
    files,
    numbered,
    put_back,
    refusal,
)

SIGNED, PLAIN = SignedPointer.path(NAME), Pointer.path(NAME)


class TestRollBack:
    @pytest.mark.parametrize("folders", [(FOLDER, "registry/names"), (FOLDER,), ("registry/names",)], ids="-".join)
    def test_older_files_put_back_are_refused_also_by_a_new_process(
        self, made: Publication, folders: tuple[str, ...]
    ) -> None:
        before = files(made.place, *folders)
        made.publish(epsilon=2.0)
        assert consumer(made).resolve(NAME).version == 2
        put_back(made.place, before)
        assert "back" in refusal(consumer(made))
        program = (
            "import sys\nfrom storage.errors import StorageError\nfrom storage.registry import Registry\n"
            "try:\n    Registry.open(sys.argv[1], trust=sys.argv[2]).resolve(sys.argv[3])\n"
            "except StorageError as error:\n    print(error)\n"
        )
        command = [sys.executable, "-c", program, made.place.address, PINNED, NAME]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "back" in done.stdout
        assert done.stderr == ""

    def test_an_older_root_put_back_is_not_believed(self, made: Publication) -> None:
        update_root(made.place, [ROOT_KEY], revoke=[made.publisher])
        assert "was revoked" in refusal(consumer(made))
        (made.home / Root.path(2)).unlink()
        assert "was revoked in version 2" in refusal(consumer(made))

    def test_something_else_under_a_number_that_was_seen_is_refused(self, made: Publication) -> None:
        consumer(made).resolve(NAME)
        found = SignedPointer.decode(NAME, made.place.read(SIGNED).payload)
        other = replace(found, pointer=replace(found.pointer, aliases={"champion": 1}))
        put_back(made.place, {SIGNED: other.sign(made.signer.key(made.place))})
        assert "something else under number 1" in refusal(consumer(made))

    def test_a_publisher_between_two_files_locks_nobody_out(self, made: Publication) -> None:
        registry = consumer(made)
        registry.resolve(NAME)
        made.publish(epsilon=2.0, plain=False)
        assert registry.resolve(NAME).version == 2
        made.point()
        assert registry.resolve(NAME).version == 2

    def test_a_publisher_goes_on_above_what_consumers_saw(self, made: Publication) -> None:
        for _ in range(5):
            made.point()
        consumer(made).resolve(NAME)
        over = made.place.read(SIGNED)
        pointer = Pointer(name=NAME, versions=made.versions, aliases={})
        write = made.signer.write
        write(made.place, pointer, over=over, before=None, plain=pointer.encode(), number=2)
        assert "--above 6" in refusal(consumer(made))
        write(made.place, pointer, over=over, before=None, plain=pointer.encode(), number=7)
        assert consumer(made).resolve(NAME).version == 1

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

    def test_without_a_state_folder_it_is_said_once_and_the_rest_is_checked(
        self, made: Publication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "file" / "state"))
        for _ in range(2):
            assert consumer(made).resolve(NAME).version == 1
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "not remembered" in said[0]
        assert "\n" not in said[0]
        put_back(made.place, {PLAIN: b"{}"})
        assert "is not the one that was signed" in refusal(consumer(made))


class TestPins:
    def test_are_found_again_for_the_same_address(self, made: Publication) -> None:
        pin(made.place.address, [PINNED], replace=False)
        assert pinned(made.place.address) == (PINNED,)
        registry = Registry.open(made.home)
        assert registry.trust is not None
        assert pickle.loads(pickle.dumps(registry)).load(NAME).n_components == 2
        with pytest.raises(Conflict, match="--replace"):
            pin(made.place.address, ["0" * 64], replace=False)
        pin(made.place.address, ["0" * 64], replace=True)
        assert "has no root signed" in refusal(Registry.open(made.home))

    def test_are_those_of_every_spelling_of_an_address(self, made: Publication, tmp_path: Path) -> None:
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

    def test_are_required_where_it_is_asked(self, made: Publication, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(Refused, match="no root key is pinned"):
            Registry.open(made.home, require_signature=True)
        monkeypatch.setenv("DPCA_REQUIRE_SIGNATURE", "true")
        with pytest.raises(Refused, match="no root key is pinned"):
            Registry.open(made.home)
        assert Registry.open(made.home, require_signature=False).load(NAME).n_components == 2
        assert consumer(made).load(NAME).n_components == 2

    def test_without_one_a_registry_loads_with_one_line_of_warning(
        self, made: Publication, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            assert Registry.open(made.home).load(NAME).n_components == 2
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "without a pinned root key" in said[0]
        assert "\n" not in said[0]

    def test_a_registry_that_cannot_be_read_is_refused_without_a_warning_before_it(
        self, made: Publication, caplog: pytest.LogCaptureFixture
    ) -> None:
        (made.home / Pointer.path(NAME)).write_bytes(b"[]")
        with pytest.raises(Corrupt, match="pointer file"):
            Registry.open(made.home).load(NAME)
        assert caplog.records == []

    def test_that_are_damaged_are_no_pins(self, made: Publication, state: Path) -> None:
        pin(made.place.address, [PINNED], replace=False)
        path = next((state / "registries").glob("*.json"))
        path.write_bytes(b"[]")
        with pytest.raises(Corrupt, match="is damaged"):
            Registry.open(made.home)
