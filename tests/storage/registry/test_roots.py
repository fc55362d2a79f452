"""Keys are delegated, retired, revoked and replaced by the root alone, and a consumer follows from root to root."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage.artifacts.manifest import canonical_json
from storage.backends.local import LocalPlace
from storage.errors import Invalid, Refused
from storage.registry.pointers import Pointer
from storage.registry.root_keys import update_root
from storage.registry.roots import Publisher, Root
from storage.registry.signed_files import public_name, sign
from storage.registry.signed_pointers import SignedPointer, digest_of, signature_path
from storage.registry.signing import make_key, read_key
from storage.registry.trust import Trust
from tests.storage.registry.signed_registries import (
    NAME,
    PINNED,
    ROOT_KEY,
    Publication,
    consumer,
    key_of,
    publication,
    put_back,
    refusal,
)

SIGNED, PLAIN = SignedPointer.path(NAME), Pointer.path(NAME)


class TestKeys:
    def test_what_a_retired_key_signed_stays_and_a_new_key_goes_on(self, made: Publication) -> None:
        old, after = made.publisher, read_key(made.signer.keys / "publisher-signing.key")
        assert consumer(made).resolve(NAME).version == 1
        new = make_key(made.home / "keys" / "publisher-signing.next.key")
        root = update_root(made.place, [ROOT_KEY], delegate={public_name(new): ("*",)}, retire=[old])
        assert root.publishers[old] == Publisher(state="retired", through={NAME: 1})
        assert consumer(made).load(NAME).n_components == 2
        made.publish(epsilon=2.0)
        assert made.publisher == public_name(new)
        for version in (1, 2):
            assert consumer(made).load(f"{NAME}@{version}").manifest["privacy"]["epsilon"] == float(version)
        pointer = Pointer(name=NAME, versions=made.versions, aliases={"champion": 1})
        late = SignedPointer(pointer=pointer, number=9, now=str(digest_of(pointer.encode())), before=None)
        put_back(made.place, {SIGNED: late.sign(after), PLAIN: pointer.encode()})
        assert f"was retired after pointer 1 of '{NAME}'" in refusal(consumer(made))

    def test_what_a_revoked_key_signed_is_refused_until_another_signs_it(self, made: Publication) -> None:
        old, digest = made.publisher, made.versions[1]
        update_root(made.place, [ROOT_KEY], revoke=[old])
        assert "was revoked in version 2 of the root" in refusal(consumer(made))
        new = made.change_key()
        update_root(made.place, [ROOT_KEY], delegate={new: ("*",)})
        assert "was revoked in version 3 of the root" in refusal(consumer(made))
        stranger = sign({"artifact": digest}, role="artifact", keys=[key_of(7)])
        made.point()
        assert consumer(made).load(NAME).n_components == 2
        put_back(made.place, {signature_path(digest): stranger})
        assert "no publisher's" in refusal(consumer(made))
        with pytest.raises(Refused, match="revoked for ever"):
            update_root(made.place, [ROOT_KEY], delegate={old: ("*",)})

    def test_a_root_signed_by_nobody_or_by_another_is_refused(self, made: Publication) -> None:
        registry = consumer(made)
        root = registry.trust.root(made.place) if registry.trust is not None else None
        assert root is not None
        forged = replace(root, version=2, publishers={public_name(key_of(9)): Publisher()})
        put_back(made.place, {Root.path(2): sign(forged.facts(), role="root", keys=[key_of(9)])})
        assert "no root that enough of its own keys signed" in refusal(registry)
        own = replace(forged, keys=(public_name(key_of(9)),), publishers={})
        put_back(made.place, {Root.path(2): sign(own.facts(), role="root", keys=[key_of(9)])})
        assert "is not signed by 1 of the keys of version 1" in refusal(registry)
        put_back(made.place, {Root.path(2): canonical_json({"signed": own.facts(), "signatures": {}})})
        assert "no root that enough of its own keys signed" in refusal(registry)

    def test_a_threshold_needs_so_many_keys(self, publishers_home: Path) -> None:
        keys = [key_of(1), key_of(2)]
        made = publication(publishers_home, LocalPlace(publishers_home), keys=keys)
        pins = [public_name(key) for key in keys]
        assert consumer(made, *pins).resolve(NAME).version == 1
        with pytest.raises(Refused, match="needs 2 keys of the one before"):
            update_root(made.place, keys[:1], revoke=[made.publisher])
        root = Trust.pinned_to(made.place, pins).root(made.place)
        alone = replace(root, version=2, threshold=1)
        put_back(made.place, {Root.path(2): sign(alone.facts(), role="root", keys=keys[:1])})
        assert "is not signed by 2 of the keys of version 1" in refusal(consumer(made, *pins))

    def test_the_roots_own_keys_change_and_old_and_new_pins_lead_there(self, made: Publication) -> None:
        new = key_of(3)
        old = consumer(made)
        old.resolve(NAME)
        update_root(made.place, [ROOT_KEY, new], add=[public_name(new)], drop=[PINNED])
        update_root(made.place, [new], revoke=[made.publisher])
        assert "was revoked" in refusal(old)
        assert "was revoked" in refusal(consumer(made, public_name(new)))
        with pytest.raises(Refused, match="needs 1 keys of the one before"):
            update_root(made.place, [ROOT_KEY], revoke=[made.publisher])

    def test_a_pin_that_signed_no_root_is_refused(self, made: Publication) -> None:
        assert "has no root signed by the pinned key" in refusal(consumer(made, public_name(key_of(8))))
        with pytest.raises(Invalid, match="64 hex digits"):
            consumer(made, "key")
