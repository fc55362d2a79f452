"""The reproduction on fMRI scans, on made files of their format; the command reads the real ones after make data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.fetch import FMRI
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from papers import fmri
from papers.fmri import ALONE, DELTA, EPSILONS, FLOORS, PERSON, POINT, RANDOM, person_epsilon, read_scans, too_few
from papers.lib.sites import ARMS, CAPE, COLLUDING, CONV
from storage.errors import BadSource
from tests.papers.conftest import Papers

REGIONS, TIMES = 12, 300


def write_scan(data: Path, subject: str, **more: Any) -> Path:
    """Write a scan where the fetched ones are; its regions follow three signals that all subjects share."""
    place = data / "fmri" / subject / "functional" / "scan.mat"
    place.parent.mkdir(parents=True)
    rng = np.random.default_rng(int(subject))
    loadings = np.random.default_rng(0).standard_normal((REGIONS, 3))
    series = 9_000 + 20 * (loadings @ rng.standard_normal((3, TIMES)) + 0.3 * rng.standard_normal((REGIONS, TIMES)))
    savemat(place, {"tc": series, **more})
    return place


def test_scans_come_in_the_order_of_subjects_with_standardised_regions_as_columns(tmp_path: Path) -> None:
    for subject in ("20", "10"):
        write_scan(tmp_path, subject)
    first, second = read_scans(tmp_path / "fmri")
    assert first.shape == second.shape == (TIMES, REGIONS)
    np.testing.assert_allclose(first.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(second.std(axis=0), 1.0)
    np.testing.assert_array_equal(read_scans(tmp_path / "fmri")[0], first)
    (tmp_path / "alone").mkdir()
    (tmp_path / "fmri" / "10").rename(tmp_path / "alone" / "10")
    np.testing.assert_array_equal(read_scans(tmp_path / "alone")[0], first)


def test_fetched_files_are_where_the_scans_are_read() -> None:
    assert FMRI.folder == fmri.FOLDER
    assert len(FMRI.files) == 7
    assert all(file.match(fmri.FILES) for file in FMRI.files)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tc": np.ones((REGIONS, TIMES))}, "constant or not finite"),
        ({"tc": np.full((REGIONS, TIMES), np.nan)}, "constant or not finite"),
        ({"tc": np.zeros((0, 0))}, "no MATLAB file with numbers"),
        ({"tc": "text"}, "no MATLAB file with numbers"),
        ({"tc": np.random.default_rng(1).standard_normal((REGIONS + 1, TIMES))}, "unlike numbers of regions"),
    ],
    ids=["constant", "not a number", "empty", "text", "other regions"],
)
def test_a_file_that_is_no_scan_is_refused(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    write_scan(tmp_path, "10")
    write_scan(tmp_path, "20", **more)
    with pytest.raises(BadSource, match=told):
        read_scans(tmp_path / "fmri")


@pytest.mark.parametrize("content", [b"", b"not a scan" * 50], ids=["empty", "other"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    write_scan(tmp_path, "10").write_bytes(content)
    with pytest.raises(BadSource, match="no MATLAB file"):
        read_scans(tmp_path / "fmri")


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noise_of_a_person_is_that_of_a_time_point_times_their_number(epsilon: float) -> None:
    of_person = gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA)
    of_point = gaussian_noise_multiplier(epsilon=person_epsilon(epsilon, records=1_200), delta=DELTA)
    assert of_point / of_person == pytest.approx(1_200, rel=1e-3)


def test_sites_are_too_few_where_an_arm_is_below_one_subject_without_privacy() -> None:
    rows: list[dict[str, Any]] = [
        {"sweep": sweep, "value": epsilon, "sites": 7, "arm": arm, "share": share}
        for sweep in (POINT, PERSON)
        for epsilon in EPSILONS
        for arm, share in ((CAPE, 0.95), (COLLUDING, 0.91), (CONV, 0.9), (ALONE, 0.9), (RANDOM, 0.2))
    ]
    assert too_few(rows) == ["7 sites are enough at every epsilon tried."]
    for row in rows:
        if (row["sweep"], row["arm"]) == (POINT, CONV) and row["value"] <= 1:
            row["share"] = 0.5
    (said,) = too_few(rows)
    assert said.startswith("7 sites are too few for conv at epsilon of a time point 0.5 (0.50), 1 (0.50): one subject")


def test_the_command_says_what_is_protected_and_where_sites_are_too_few(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three short scans are far from the expected numbers of seven, so the status says so."""
    monkeypatch.setattr(fmri, "N_COMPONENTS", 3)
    monkeypatch.setattr(fmri, "EPSILONS", (0.5, 10.0))
    for subject in ("10", "20", "30"):
        write_scan(tmp_path, subject)
    arguments = ("fmri", "--runs", "1", "--data", tmp_path, "--out", tmp_path / "out")
    ending = papers(*arguments, "--json")
    assert ending.out, ending.err
    found = json.loads(ending.out)
    held = {check["name"]: check["holds"] for check in found["checks"]}
    assert ending.status == 1
    assert not held["subjects"]
    assert len(held) == len(found["checks"]) == 3 + 5 * 2
    rows = found["tables"]["sweeps"]
    assert {row["arm"] for row in rows} == {*ARMS, ALONE, RANDOM}
    assert len(rows) == 2 * 2 * (len(ARMS) + 2)
    share = {(row["sweep"], row["value"], row["arm"]): row["share"] for row in rows}
    assert share[POINT, 10.0, CAPE] > 0.95 > 0.8 > share[PERSON, 0.5, CAPE]
    assert share[POINT, 10.0, "non-private"] == pytest.approx(1.0)
    assert found["notes"][0].startswith("One record is one time point of a scan, not a person")
    assert any(note.startswith("3 sites are too few for cape at epsilon of a person") for note in found["notes"])
    assert {Path(file).name for file in found["files"]} == {
        f"sweeps{end}" for end in (".csv", ".md", "-fmri.svg", "-fmri.png")
    }
    assert "not a person" in (tmp_path / "out" / "sweeps.md").read_text(encoding="utf8")


def test_without_scans_one_line_says_how_to_get_them(papers: Papers, tmp_path: Path) -> None:
    ending = papers("fmri", "--data", tmp_path)
    assert ending.status == 0
    assert ending.err.count("make data fetches them") == 1
    assert "True" not in ending.out


def test_expected_shares_stand_at_every_epsilon() -> None:
    assert {len(floors) for floors in FLOORS.values()} == {len(EPSILONS)}
