"""``dpca audit``, as a user runs it."""

import copy
import json

import pytest

from dpca_tasks.noise.distributions import Gaussian
from flows.cli import main
from tests.storage.trail.forging import EDITS, exported, two_populations


def audit(capsys, *options):
    status = main(["audit", "--mechanism", "analyze_gauss", "--trials", "100", *options])
    return status, capsys.readouterr().out


def test_it_prints_a_row_for_each_relation_and_succeeds(capsys):
    status, printed = audit(capsys, "--json")
    rows = json.loads(printed)
    assert status == 0
    assert [row["relation"] for row in rows] == ["add_remove", "zero_out", "replace_one"]
    assert all(row["verdict"] == "passed" and row["bound"] <= row["epsilon"] for row in rows)


def test_it_fails_when_a_bound_passes_the_claim(capsys, monkeypatch):
    draw = Gaussian.draw

    def faint(self, key, order, *, scale_in_steps, **piece):
        return draw(self, key, order, scale_in_steps=scale_in_steps / 4, **piece)

    monkeypatch.setattr(Gaussian, "draw", faint)
    status, printed = audit(capsys)
    assert status == 1
    assert printed.count("FAILED") == 3


@pytest.mark.parametrize("options", [["--mechanism", "sulq"], ["--confidence", "1.5"]])
def test_what_cannot_be_audited_is_refused_in_one_line(capsys, options):
    assert main(["audit", *options]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


@pytest.fixture(scope="module")
def trail(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("trail") / "home"))
        workspace = two_populations()
        return exported(workspace), workspace.ledger.statement("patients").spent


def test_a_file_is_verified_without_a_home_to_the_last_digit_and_no_edit_of_it_is(trail, tmp_path, capsys, monkeypatch):
    export, spent = trail
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "absent"))
    file = tmp_path / "trail.json"
    file.write_text(json.dumps(export))
    assert main(["audit", "verify", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"] == spent
    assert len(EDITS) >= 10
    for edit in EDITS.values():
        edited = copy.deepcopy(export)
        edit(edited)
        file.write_text(json.dumps(edited))
        assert main(["audit", "verify", str(file)]) == 1
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert not (tmp_path / "absent").exists()
