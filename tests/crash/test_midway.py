"""A release is charged once, and its bytes are the same, if the home becomes read-only or the clock jumps meanwhile."""

from collections.abc import Callable, Iterator

import pytest

from storage.ledger import secret_keys
from tests.crash.calm import Undisturbed, trace
from tests.crash.faults import Place, recorder
from tests.crash.midway import jumping, lock_folders, obey_modes, unlock_folders
from tests.crash.processes import UNAVAILABLE, forked
from tests.crash.recount import Tally, recount
from tests.crash.world import Hook, World, attempt, found_world, open_budget, recover, request_of, warm_up


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Ingest rows into a home, once, and compile what its releases need."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.setenv(name, "")  # what it was comes back afterwards, and so do the keys
        patch.setattr(secret_keys, "new_key", secret_keys.new_key)
        made = found_world(tmp_path_factory.mktemp("midway") / "calm")
        warm_up(made.copy("warm"))
        yield made


@pytest.fixture(scope="module")
def undisturbed(calm: World) -> Undisturbed:
    return Undisturbed(calm=calm, name="peace")


def disturbed(calm: World, name: str, hook: Callable[[World], Hook], undisturbed: Undisturbed) -> int:
    """Make a run in a copy of a world with a hook, then again without; return how the first one ended."""
    world = calm.copy(name)
    open_budget(world, [0])

    def first() -> None:
        obey_modes()
        attempt(world, 0, 0, hook=hook(world))

    status = forked(first)
    unlock_folders(world.home)
    assert forked(lambda: attempt(world, 0, 1)) == 0
    recover(world)
    found = recount(world, [request_of(0)], undisturbed.digests(world, [0]))
    assert found == Tally(digests_equal=1), found
    world.destroy()
    return status


def locking(place: Place) -> Callable[[World], Hook]:
    """Return what makes the hook that makes a home read-only at a place."""

    def made(world: World) -> Hook:
        seen: list[Place] = []
        note = recorder(seen)

        def hook(point: str) -> None:
            note(point)
            if seen[-1] == place:
                lock_folders(world.home)

        return hook

    return made


def test_a_home_that_becomes_read_only_costs_and_loses_nothing(calm: World, undisturbed: Undisturbed) -> None:
    """Where a noised step is about to be settled; `make audit` tries every place."""
    place = Place(point="keep.file_written", occurrence=1)
    assert disturbed(calm, "read-only", locking(place), undisturbed) == UNAVAILABLE


@pytest.mark.audit_only
@pytest.mark.timeout(900)
def test_a_home_that_becomes_read_only_anywhere_costs_and_loses_nothing(calm: World, undisturbed: Undisturbed) -> None:
    places = trace(calm)[0]
    ends = [disturbed(calm, f"read-only-{number}", locking(place), undisturbed) for number, place in enumerate(places)]
    assert set(ends) <= {0, UNAVAILABLE}
    assert ends.count(UNAVAILABLE) > len(places) // 2


def test_a_clock_that_jumps_by_hours_and_weeks_changes_no_charge_and_no_byte(
    calm: World, undisturbed: Undisturbed
) -> None:
    """Forwards and backwards, between any two durable effects; a neighbour with that clock opens the home meanwhile."""
    assert disturbed(calm, "jumping", jumping, undisturbed) in (0, UNAVAILABLE)
