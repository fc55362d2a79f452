"""Program ``make estimators``: it must report every deviation of scikit-learn's checks from the listed ones."""

from tests.estimators.__main__ import ROOT, TESTS, VERSIONS, not_failed, unlisted
from tests.estimators.child import NON_DETERMINISTIC, SUBJECTS

LISTED = "check_estimator_sparse_array"
AS_LISTED = {
    name: [{"check": check, "status": "failed", "error": ""} for check in subject.exceptions]
    for name, subject in SUBJECTS.items()
}


def test_the_principal_components_have_one_exception_the_equality_of_two_fits() -> None:
    subjects = [subject for name, subject in SUBJECTS.items() if name.startswith("PrivatePCA")]
    assert [[*subject.exceptions] for subject in subjects] == [["check_fit_idempotent"]] * 2
    assert len(VERSIONS) == 4


def test_a_check_that_the_tag_leaves_out_may_be_skipped_and_not_fail() -> None:
    for check in NON_DETERMINISTIC:
        found = {"PrivatePCA": [{"check": check, "status": status, "error": ""} for status in ("skipped", "failed")]}
        assert unlisted(found) == [f"PrivatePCA: {check} failed: "]


def test_a_failed_or_skipped_check_that_is_not_listed_is_a_fault() -> None:
    assert unlisted(AS_LISTED) == []
    for status in ("failed", "skipped"):
        outcomes = {"PrivatePCA": [{"check": LISTED, "status": status, "error": "why"}]}
        assert unlisted(outcomes) == [f"PrivatePCA: {LISTED} {status}: why"]


def test_an_exception_that_fails_nowhere_is_a_fault() -> None:
    passed = {name: [{**result, "status": "passed"} for result in results] for name, results in AS_LISTED.items()}
    assert not_failed([passed, AS_LISTED]) == []
    assert not_failed([passed]) != []


def test_all_files_copied_next_to_an_environment_exist() -> None:
    assert [name for name in TESTS if not (ROOT / name).exists()] == []
