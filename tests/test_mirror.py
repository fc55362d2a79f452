"""The tests mirror the packages: who changes a source file knows which test speaks of it."""

from tests.mirror import ROOT, ROWS, own_test, sources

LISTED = [source for listed in ROWS.values() for source in listed.split()]


def test_every_source_file_has_its_test_file_or_a_row() -> None:
    without = {source for source in sources() if not own_test(source).is_file()}
    assert sorted(without - set(LISTED)) == [], "write its test file, or give it a row in tests/mirror.py"


def test_every_row_names_files_that_exist_and_is_needed() -> None:
    assert [test for test in ROWS if not (ROOT / "tests" / test).is_file()] == []
    assert sorted(set(LISTED) - sources()) == []
    assert [source for source in LISTED if own_test(source).is_file()] == []
    assert sorted(LISTED) == sorted(set(LISTED)), "one row is enough"
