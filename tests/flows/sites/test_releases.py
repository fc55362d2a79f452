"""Joint releases of sites in separate processes: the same bits as in one process, and one charge after losses.

The commands of the guide for operators of sites work as typed, from keys and roster to a published version.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from dpca.registry.reader import Registry
from dpca_tasks.accounting import events
from dpca_tasks.errors import SiteSilent
from dpca_tasks.mechanisms.sites.joint_plan import noise_ratio
from flows.cli import main
from flows.demo import Federation, aggregator, await_listening, free_ports, start, stop
from flows.parties.calling import Caller, Frame
from flows.sites import releases as stages
from flows.sites.plans import with_parent
from flows.sites.releases import fit_sites_directly
from storage.registry.agreement import compare_artifacts
from storage.workspace import Workspace
from tests.docs.reader import DOCS, ROOT, shell_blocks
from tests.flows.sites.conftest import (
    METHODS,
    SHARED,
    TOPICS,
    at_home,
    check_same,
    check_topics,
    computed,
    planned_of,
    released_alone,
    request,
    silent,
)


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in SHARED[:5] else pytest.mark.audit_only) for name in METHODS],
)
def test_processes_with_a_helper_release_the_arrays_of_one_process(federation: Federation, method: str) -> None:
    requested = request(federation, **METHODS[method], run_key="bits")
    releases, artifact = computed(federation, requested)
    check_same(artifact, released_alone(federation, planned_of(requested), releases))


def test_a_joint_release_starts_from_an_earlier_one_whose_map_no_site_has_to_know(federation: Federation) -> None:
    """Release twice: the second release has the first one's map, one round, and the whole budget at each site.

    The sites have the same noise as in one process. Their ledgers and the artifact name the earlier release.
    """
    with aggregator(federation):
        first = fit_sites_directly(request(federation, run_key="first", publish="monthly", epsilon=20.0))
    requested = request(federation, run_key="second", publish="monthly", epsilon=2.0, like=first["artifact"])
    releases, artifact = computed(federation, requested)
    with aggregator(federation):
        planned = with_parent(planned_of(requested))
    check_same(artifact, released_alone(federation, planned, releases))
    with aggregator(federation):
        again = fit_sites_directly(requested)
    assert artifact.map_directions is not None
    assert artifact.outcome["rounds"]["directions"][0] >= 2
    facts = artifact.manifest["plan"]
    assert (facts["like"], facts["like_digest"]) == (first["artifact"], first["digest"])
    assert again["epsilon"] == 2.0
    for name, release in releases.items():
        with at_home(federation, name) as workspace:
            row = workspace.ledger.release(release)
        assert row.request["like"] == first["artifact"]
        assert events.count_steps(row.event) == 2  # both attempts of one round


@pytest.mark.parametrize("lost_in", [0, 2])
def test_rounds_continue_without_a_site_that_is_lost_in_one_of_them(federation: Federation, lost_in: int) -> None:
    """Lose a site in the first or last of three rounds: the noise of that round and of later rounds is larger."""
    lost = federation.names[2]
    requested = request(federation, rounds=3, epsilon=20.0, run_key=f"round-{lost_in}", publish="lost-rounds")
    with aggregator(federation), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "call", silent(lost, first=lost_in))
        report = fit_sites_directly(requested)
        found = Registry.open().load(report["artifact"], PrivateSubspace)
    facts = found.outcome["rounds"]
    planned = planned_of(requested).plan
    units = [norm**2 + constant**2 for norm, constant in zip(facts["clip_norm"], facts["constant"], strict=True)]
    ratios = [
        std / (unit * each.noise_multiplier)
        for std, unit, each in zip(facts["noise_std"], units, planned.rounds, strict=True)
    ]
    roster = planned.roster
    assert roster is not None
    smaller = noise_ratio(planned=roster, answered=roster.without(lost))
    law = ratios[0] / (smaller if lost_in == 0 else 1.0)  # sensitivity, and the share off the diagonal
    assert ratios == pytest.approx([law * (smaller if at >= lost_in else 1.0) for at in range(3)], rel=1e-9)
    assert law == pytest.approx(1.0, rel=1e-9)
    took_part = [site["site"] for site in report["sites"]]
    assert took_part == [*federation.names[:2], *([lost] if lost_in else [])]


def test_the_server_receives_only_masked_messages_with_the_right_sum(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record everything that reaches the aggregator: only masked words, whose total is the sum of the stored integers.

    A masked word equals a site's integer with probability 1e-15.
    """
    transcript = []
    call = Caller.call

    def kept(caller, path, facts, *others, **more):
        frame = call(caller, path, facts, *others, **more)
        transcript.append((caller.name, path.rpartition("/")[2], frame))
        return frame

    monkeypatch.setattr(Caller, "call", kept)
    releases, _ = computed(federation, request(federation, run_key="transcript"))
    arrays = {name: frame.arrays["words"] for name, route, frame in transcript if route == "message"}
    assert sorted(arrays) == sorted(federation.names)
    assert {route for _, route, frame in transcript if frame.arrays} == {"message"}
    text = [fact for _, _, frame in transcript for fact in frame.facts]
    assert set(text) == {"exists", "release", "round", "attempt", "roster"}
    integers = {}
    for name, release in releases.items():
        with at_home(federation, name) as workspace:
            stored = workspace.ledger.begin(release).kept(0)
            assert stored is not None
            integers[name] = stored["answer"]
    for name, words in arrays.items():
        assert not np.isin(words, integers[name].view(np.uint64)).any()
    for order in (federation.names, federation.names[::-1]):
        total = sum((arrays[name] for name in order), np.zeros(78, np.uint64)).view(np.int64)
        np.testing.assert_array_equal(total, sum(integers.values()))


def test_the_same_request_is_the_same_version_and_each_ledger_is_charged_once(federation: Federation) -> None:
    requested = request(federation, run_key="twice")
    with aggregator(federation):
        first, again = (fit_sites_directly(requested) for _ in range(2))
        other = fit_sites_directly(request(federation, run_key="twice", publish="other"))
        shown = Registry.open().show(first["artifact"])
        workspace = Workspace.open()
        assert workspace.ledger.verify() > 0
        with workspace.ledger.transaction() as connection:
            assert compare_artifacts(connection, workspace.store) >= 2
        assert list(workspace.catalog.entries()) == []
    assert (again["artifact"], again["reused"], first["reused"]) == (first["artifact"], True, False)
    assert (other["digest"], other["reused"]) == (first["digest"], True)
    assert shown["manifest"]["plan"]["sites"] == first["sites"]
    for site in first["sites"]:
        with at_home(federation, site["site"]) as home:
            row = home.ledger.release(site["release"])
            same = [each for each in home.ledger.statement("rows").releases if each.request.get("run_key") == "twice"]
        assert (row.state, row.artifact_digest, len(same)) == ("committed", first["digest"], 1)


STAGES = ["publish_sites", "compute_sites", "finish_sites", "report_sites"]


@pytest.mark.parametrize(
    "stage", [STAGES[0], *(pytest.param(name, marks=pytest.mark.audit_only) for name in STAGES[1:])]
)
def test_a_killed_aggregator_continues_without_new_noise_or_charge(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    requested = request(federation, run_key=f"killed-{stage.replace('_', '-')}", publish="killed")
    messages = []
    with aggregator(federation):
        with monkeypatch.context() as patch:
            patch.setattr("flows.sites.releases." + stage, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fit_sites_directly(requested)
        report = fit_sites_directly(requested)
        messages = [site["release"] for site in report["sites"]]
    assert len(messages) == 3
    for site in report["sites"]:
        with at_home(federation, site["site"]) as home:
            rows = [
                one for one in home.ledger.statement("rows").releases if one.request["run_key"] == requested.run_key
            ]
        assert [(row.id, row.state) for row in rows] == [(site["release"], "committed")]


def test_a_lost_site_is_omitted_with_fresh_noise_and_a_restarted_site_answers_again(federation: Federation) -> None:
    """Lose a site: the smaller roster gets fresh noise, and is already charged; a restarted site answers again.

    Attempts and dropouts were reserved in advance.
    """
    lost = federation.names[2]
    requested = request(federation, run_key="lost", publish="lost")
    with aggregator(federation):
        releases = stages.reserve_sites(requested)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Caller, "call", silent(lost))
            digest = stages.compute_sites(requested, releases, "")
            artifact = stages.publish_sites(requested, digest)[0]
            assert stages.finish_sites(requested, digest) == []
        shown = Registry.open().show(artifact)["manifest"]["plan"]["sites"]
        assert [site["site"] for site in shown] == list(federation.names[:2])
        report = fit_sites_directly(requested)
        assert (report["digest"], report["reused"]) == (digest, True)
    with at_home(federation, federation.names[0]) as home:
        (row,) = (one for one in home.ledger.statement("rows").releases if one.request["run_key"] == "lost")
        assert row.state == "committed"


def test_a_site_whose_answer_to_the_reservation_was_lost_takes_part_and_is_listed(federation: Federation) -> None:
    """Lose a site's answer to the reservation: the site is charged, so the same request must find its release.

    The site takes part, and its release is listed.
    """
    lost, call = federation.names[1], Caller.call
    answers: list[Frame] = []

    def losing(caller, path, *others, **more):
        frame = call(caller, path, *others, **more)
        if caller.name == lost and path == "/v1/reserve" and not answers:
            answers.append(frame)
            raise SiteSilent("the answer of the site was lost.")
        return frame

    with aggregator(federation), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "call", losing)
        report = fit_sites_directly(request(federation, run_key="answer-lost"))
    listed = {site["site"]: site["release"] for site in report["sites"]}
    assert list(listed) == list(federation.names)
    assert listed[lost] == answers[0].fact("release", str)


@pytest.mark.parametrize("lost_in", [0, 1])
def test_components_are_released_without_a_site_lost_in_either_round(federation: Federation, lost_in: int) -> None:
    """Lose a site in the first or second round of components.

    If it is lost in the first round, that round already uses the smaller roster. The second round keeps the directions
    of the first.
    """
    others, lost = federation.names[:2], federation.names[2]
    requested = request(federation, **TOPICS, run_key=f"lost-in-{lost_in}", publish="lost")
    with aggregator(federation), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "call", silent(lost, first=lost_in))
        releases = stages.reserve_sites(requested)
        stages.compute_sites(requested, releases, "")
    for name in others:
        with at_home(federation, name) as home:
            row = home.ledger.begin(releases[name])
            kept = {step: answer for step in range(4) if (answer := row.kept(step)) is not None}
        assert events.count_steps(row.event) == 4, "both attempts of both rounds are paid"
        assert list(kept) == ([0, 2, 3] if lost_in else [0, 1, 2])
        tried, answered = (kept[step] for step in ((2, 3) if lost_in else (0, 1)))
        assert not np.isin(tried["answer"], answered["answer"]).all(), "a smaller roster has fresh noise"
        if lost_in:
            np.testing.assert_array_equal(tried["public.directions"], answered["public.directions"])
    with aggregator(federation), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Caller, "call", silent(lost, first=lost_in))
        report = fit_sites_directly(requested)
        check_topics(Registry.open().load(report["artifact"], TensorComponents))
    took_part = [site["site"] for site in report["sites"]]
    assert took_part == [*others, *([lost] if lost_in else [])], "whoever was summed in either round is named"


@pytest.mark.audit_only
def test_a_site_process_that_is_killed_and_started_again_answers_with_the_same_integers(
    federation: Federation,
) -> None:
    name = federation.names[1]
    requested = request(federation, run_key="restarted")
    releases, first = computed(federation, requested)
    assert len(releases) == 3
    process = federation.processes[name]
    process.kill()
    stop(process)
    federation.processes[name] = start(federation, name)
    await_listening(federation, name, federation.processes[name])
    _, second = computed(federation, requested)
    np.testing.assert_array_equal(first.components, second.components)
    np.testing.assert_array_equal(first.spectrum, second.spectrum)


@pytest.mark.audit_only
def test_the_demo_starts_processes_and_finds_the_directions_of_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sites", "2", "--features", "8", "--epsilon", "50", "--folder", str(tmp_path), "--json"]
    assert main(["sites", "demo", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["artifact"], len(report["sites"])) == ("demo@1", 2)
    assert report["distance_to_all_rows"] < 0.02


GUIDE = DOCS / "how-to" / "sites-as-parties.md"


@pytest.mark.audit_only
def test_the_guide_for_operators_works_as_it_is_typed(tmp_path: Path) -> None:
    script = "".join(shell_blocks(GUIDE))
    for written, free in zip(("8700", "8701", "8702"), free_ports(3), strict=True):
        assert written in script
        script = script.replace(written, str(free))
    command = tmp_path / "bin" / "dpca"
    command.parent.mkdir()
    start = "import sys; from flows.cli import main; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    command.chmod(0o700)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_"))}
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    reported = {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT), "DPCA_ALLOW_SHARED_HOME": "true"}
    # files instead of pipes, because services that keep running would keep a pipe open
    out, errors = tmp_path / "out", tmp_path / "errors"
    try:
        with out.open("w") as to, errors.open("w") as wrong:
            ended = subprocess.run(
                ["bash", "-euo", "pipefail"],
                input=script,
                env={**plain, **reported, "DPCA_STATE_FOLDER": str(tmp_path / "state")},
                cwd=tmp_path,
                stdout=to,
                stderr=wrong,
                text=True,
                check=False,
                timeout=540,
            )
    finally:
        for process in (tmp_path / "running").read_text().split() if (tmp_path / "running").exists() else ():
            os.kill(int(process), signal.SIGTERM)
    assert ended.returncode == 0, errors.read_text()
    printed = out.read_text()
    assert re.search(r"^artifact +joint-map@1$", printed, re.MULTILINE), printed
    shown = json.loads(printed[printed.index("\n{") :].partition("\n}\n")[0] + "\n}")
    assert [site["site"] for site in shown["manifest"]["plan"]["sites"]] == ["north", "south"]
    assert re.search(r"^releases .*committed", printed, re.MULTILINE)
