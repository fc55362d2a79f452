"""The table of expected numbers, through the command."""

import json

import numpy as np
import pytest

from papers.mechanisms import CASES, FEATURES, RECORDS, a9a_like
from tests.papers.conftest import Papers

SHEET = (0.308, 0.069, 0.051, 0.042, 0.022, 0.020, 0.017, 0.0166, 0.0161, 0.0147, 0.0147)


def test_the_synthetic_matrix_is_like_that_of_the_sheet() -> None:
    rows = a9a_like()
    assert rows.shape == (RECORDS, FEATURES)
    np.testing.assert_allclose(rows.multiply(rows).sum(axis=1), 1.0)
    spectrum = np.linalg.eigvalsh((rows.T @ rows).toarray())[::-1][: len(SHEET)] / RECORDS
    np.testing.assert_allclose(spectrum, SHEET, rtol=0.1)


def test_the_command_prints_checks_that_hold(papers: Papers) -> None:
    ending = papers("mechanisms", "--mechanism", "wishart", "--mechanism", "mod_sulq", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 6
    assert all(set(check) == {"name", "expected", "tolerance", "got", "holds"} for check in checks)
    assert all(abs(check["got"] - check["expected"]) <= check["tolerance"] for check in checks)
    assert checks[-2]["tolerance"] == pytest.approx(0.25 * (1 - 0.793))


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
