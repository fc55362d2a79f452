"""Stages of a release, their progress, and notices.

A fit plans once: the confirmed plan is charged, the charged plan is stored, and the stored plan is computed. The
progress of a sum in partitions reaches the terminal, the display and the log. Notices are created once, sent until they
are accepted, signed, and sent to the webhook only.
"""

import errno
import hashlib
import hmac
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from dpca.backends.atomic_files import claim_file
from dpca.errors import Unavailable
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from flows.families.base import every_family, read_planned, stored_request
from flows.families.subspace import SUBSPACE
from flows.releases import running
from flows.releases import running as subject
from flows.releases.running import deliver_notices, give_notice
from flows.releases.stages import plan_on, release_directly
from flows.reports import activity as watching
from flows.reports.activity import Activity
from flows.requests import SubspaceRequest
from flows.settings import cluster_settings
from storage.datasets.catalog import Entry
from storage.ledger.budgets import Budget
from tests.flows.arriving import listening
from tests.flows.conftest import FIT, Command

REQUEST: dict[str, Any] = {
    **{"dataset": "people", "components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.5, "publish": "sub"}
}
VARIANTS: list[dict[str, Any]] = [
    *({"mechanism": name} for name in sorted(SUBSPACE.mechanisms)),
    {"clip_norm": "quantile:0.9"},
    {"row_policy": "normalise", "center": "private"},
    {"mechanism": "mod_sulq", "settings": {"calibration": "paper"}},
    {"mechanism": "non_private", "epsilon": None, "delta": None, "i_know_this_is_not_private": True},
]
ENTRY = Entry(
    snapshot="s" * 12,
    name="people",
    population="people",
    n_features=6,
    records_at_most=900,
    path="datasets/s",
    content_digest="0" * 64,
    created_at="2026-01-01T00:00:00+00:00",
)
FINGERPRINTS = {
    "analyze_gauss": "44210840d8921353",
    "dp_spca": "3a8c9ef5669a7bae",
    "dp_vrpca": "2af08f0b1a102bbb",
    "exponential": "9becdc85f78e8840",
    "laplace": "1dfdb4dafb96eee9",
    "local_gaussian": "89c40d283b59c7ea",
    "mod_sulq": "863e347152486020",
    "noisy_power": "2fef9c1a9fd4499b",
    "propose_test_release": "a4e1f3a6ac00847b",
    "smooth_sensitivity": "5d1cbb0de1046df6",
    "wishart": "5fae633681e229a2",
}
"""The first digits of the digest of `REQUEST` per mechanism; a charged release is looked up by this digest."""
BUDGET = Budget(
    population="people",
    epsilon=9.0,
    delta=1e-5,
    failure_delta=0.0,
    relation="replace_one",
    filter="gdp",
    unit="row",
    rows_per_unit=1,
)
LEDGER: Any = SimpleNamespace(budget=lambda _population: BUDGET)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects the problem of every call of a mechanism's `plan`."""
    seen: list[Any] = []
    plan: Callable[..., Any] = AnalyzeGauss.plan

    def counted(self: AnalyzeGauss, problem: Any, target: Any) -> Any:
        seen.append(problem)
        return plan(self, problem, target)

    monkeypatch.setattr(AnalyzeGauss, "plan", counted)
    return seen


@pytest.mark.parametrize("requested", VARIANTS, ids=lambda requested: "-".join(map(str, requested.values())))
def test_the_stored_plan_is_the_plan_to_the_bit(requested: dict[str, Any]) -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**REQUEST | requested))
    row: Any = SimpleNamespace(
        request=json.loads(json.dumps(stored_request(planned), allow_nan=False)),
        event=json.loads(json.dumps(planned.plan.event)),
        population=planned.population,
        snapshot_id=planned.snapshot_id,
        run_key=planned.run_key,
        fingerprint=planned.fingerprint,
    )
    assert read_planned(row, unit=planned.unit) == planned


@pytest.mark.parametrize(("mechanism", "began"), FINGERPRINTS.items())
def test_a_request_has_the_digest_of_earlier_versions(mechanism: str, began: str) -> None:
    planned = plan_on(LEDGER, ENTRY, SubspaceRequest(**{**REQUEST, "mechanism": mechanism}))
    assert planned.fingerprint.startswith(began)


def test_requests_with_different_calibrations_are_different() -> None:
    requested = {**REQUEST, "components": 1, "mechanism": "exponential"}
    found = [
        plan_on(LEDGER, ENTRY, SubspaceRequest(**requested, settings=settings)).fingerprint
        for settings in ({}, {"calibration": "tight"}, {"calibration": "paper"})
    ]
    assert found[0] == found[1] != found[2]


def test_mechanisms_of_all_families_have_distinct_names() -> None:
    names = [name for family in every_family() for name in {**family.mechanisms, **family.references}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", [("--direct",), ()], ids=["direct", "prefect"])
@pytest.mark.usefixtures("prefect")
def test_a_command_plans_once(ready: Path, dpca: Command, plans: list[Any], kind: tuple[str, ...]) -> None:
    assert dpca(*FIT, *kind, "--yes", "--json").status == 0, ready
    assert len(plans) == 1


def test_a_resumed_release_uses_the_charged_plan(
    ready: Path, dpca: Command, plans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise Unavailable("the disk is full; make room.")

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_artifact", full)
        assert "the disk is full" in dpca(*FIT, "--direct", "--yes").complaint(1), ready
    plans.clear()
    report = release_directly(SubspaceRequest(**REQUEST))
    assert len(plans) == 1  # the plan that finds the release by its request
    assert (report["artifact"], report["reused"]) == ("sub@1", False)


def test_progress_of_a_cluster_reaches_terminal_display_and_log_of_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[tuple[str, str]] = []
    shown: list[tuple[int, int]] = []
    logged: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(subject, "log_event", lambda event, **facts: logged.append((event, facts)))
    seen = Activity("starting", lambda doing, far: reported.append((doing, far)))
    token = watching._now.set(seen)
    try:
        progress = subject.summing(lambda done, total: shown.append((done, total)))
    finally:
        watching._now.reset(token)
    for done in (1, 2):
        thread = Thread(target=progress, args=(done, 2))
        thread.start()
        thread.join()
    assert reported == [
        ("summing partitions", ""),
        ("summing partitions", "1 of 2"),
        ("summing partitions", "2 of 2"),
        ("adding noise and post-processing", ""),
    ]
    assert shown == [(1, 2), (2, 2)]
    assert logged == [("summed", {"partitions": 2})]


def test_progress_without_a_recipient_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    subject.summing()(1, 2)
    assert capsys.readouterr() == ("", "")


def give(home: Path, key: str = "one") -> bool:
    return give_notice(home, "release.held", key=key, about="people-map", facts={"artifact": "people-map@1"})


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("_no_pauses")
def test_a_notice_is_reported_once_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        monkeypatch.setenv("DPCA_WEBHOOK_SECRET", "key of the hook")
        assert (give(tmp_path), give(tmp_path), give(tmp_path, "two")) == (True, False, True)
    assert hook.reported[0].items() >= {"event": "dpca.release.held", "artifact": "people-map@1"}.items()
    assert len(hook.reported) == 2
    payload = json.dumps(hook.reported[0]).encode()
    signed = hmac.new(b"key of the hook", payload, hashlib.sha256).hexdigest()
    assert hook.headers[0]["X-Dpca-Signature"] == f"sha256={signed}"
    assert hook.headers[0]["Idempotency-Key"] == hook.reported[0]["id"] != hook.reported[1]["id"]


@pytest.mark.usefixtures("_no_pauses")
def test_an_unavailable_webhook_is_called_again_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 5
        assert give(tmp_path)
        assert (hook.reported, len(hook.headers)) == ([], 3)
        assert deliver_notices(tmp_path) == 0
        assert deliver_notices(tmp_path) == 0
    assert len(hook.reported) == 1
    assert len({headers["Idempotency-Key"] for headers in hook.headers}) == 1


@pytest.mark.usefixtures("_no_pauses")
def test_a_refused_notice_does_not_delay_other_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 100
        for key in "abcd":
            assert give(tmp_path, key)
        hook.failures = 0
        assert hook.reported == []
        hook.refuses = refused = json.loads(hook.bodies[0])["id"]
        assert deliver_notices(tmp_path) == 1
        assert len(hook.reported) == 3
        assert refused not in {reported["id"] for reported in hook.reported}
        hook.refuses = None
        assert deliver_notices(tmp_path) == 0
    assert len(hook.reported) == 4


@pytest.mark.usefixtures("_no_pauses")
def test_an_unavailable_webhook_delays_a_run_only_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 100
        for key in "abc":
            give(tmp_path, key)
        calls = len(hook.headers)
        monkeypatch.setattr(running, "LONGEST", 0.0)
        assert deliver_notices(tmp_path) == 3
        assert len(hook.headers) == calls


@pytest.mark.usefixtures("_no_pauses")
def test_processes_that_deliver_at_once_call_the_webhook_once_for_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 3
        assert give(tmp_path)
        hook.seconds = 0.2
        with ThreadPoolExecutor(max_workers=4) as pool:
            [*pool.map(lambda _: deliver_notices(tmp_path), range(4))]
            [*pool.map(lambda _: give(tmp_path), range(4))]
    assert len(hook.reported) == 1


@pytest.mark.usefixtures("_no_pauses")
def test_a_delivered_notice_is_not_sent_again_by_a_slow_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = list[bool]()

    def slow(path: Path, payload: bytes) -> bool:
        """Claim the notice file, after another process has just claimed the same file."""
        monkeypatch.setattr(running, "claim_file", claim_file)
        faster.append(give(tmp_path))
        return claim_file(path, payload)

    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        (tmp_path / running.FOLDER).mkdir()
        monkeypatch.setattr(running, "claim_file", slow)
        assert (give(tmp_path), faster) == (False, [True])
    assert len(hook.reported) == 1


@pytest.mark.usefixtures("_no_pauses")
def test_one_of_several_equal_notices_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        with ThreadPoolExecutor(max_workers=8) as pool:
            assert sum(pool.map(lambda _: give(tmp_path), range(16))) == 1
        assert len(hook.reported) == 1


@pytest.mark.usefixtures("_no_pauses")
def test_without_a_webhook_notices_are_logged_and_not_stored(tmp_path: Path) -> None:
    assert give(tmp_path)
    assert deliver_notices(tmp_path) == 0
    assert len([*tmp_path.rglob("*.taken")]) == 1


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("url", ["http://hooks.example.com/secret-path", "ftp://127.0.0.1/secret-path", "secret-path"])
def test_an_address_that_others_could_read_is_refused_without_quoting_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_WEBHOOK_URL", url)
    with pytest.raises(InvalidInput, match="must begin with https://") as refused:
        cluster_settings()
    assert "secret-path" not in str(refused.value)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 banana\r\n\r\n", b""])
def test_a_webhook_that_does_not_answer_in_http_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(max_workers=1) as pool:

        def babble() -> None:
            for _ in range(3):
                caller, _ = server.accept()
                with caller:
                    caller.recv(1 << 16)
                    caller.sendall(answer)

        server.settimeout(20)
        calls = pool.submit(babble)
        monkeypatch.setenv("DPCA_WEBHOOK_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert give(tmp_path)
        calls.result(timeout=20)
    assert not [*tmp_path.rglob("*.taken")]


@pytest.mark.usefixtures("_no_pauses")
def test_an_unsafe_address_in_a_block_fails_no_release_and_keeps_the_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "stored_secret", lambda _: "http://hooks.example.com/secret-path")
    assert give(tmp_path)
    assert not [*tmp_path.rglob("*.taken")]


@pytest.mark.usefixtures("_no_pauses")
def test_a_block_that_cannot_be_read_keeps_the_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(_: str) -> str:
        raise Unavailable("block dpca-webhook-url of Prefect cannot be read")

    monkeypatch.setattr(running, "stored_secret", down)
    assert give(tmp_path)
    assert deliver_notices(tmp_path) == 1


@pytest.mark.usefixtures("_no_pauses")
def test_a_full_disk_is_named_and_the_notice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.delenv("DPCA_WEBHOOK_URL", raising=False)
    monkeypatch.setattr(running, "_webhook", lambda: (None, None))
    with monkeypatch.context() as patch:
        patch.setattr(running, "_taken", refuses)
        with pytest.raises(Unavailable, match="notices cannot be written"):
            give(tmp_path)
    assert len(list((tmp_path / "notices").glob("*.delivered"))) == 1
    assert deliver_notices(tmp_path) == 0
    assert len(list((tmp_path / "notices").glob("*.taken"))) == 1
