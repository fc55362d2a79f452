"""The privacy unit, and the one sentence that states the privacy guarantee of a release."""

import itertools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.errors import Invalid
from dpca.privacy_unit import (
    LONGEST,
    NIGHT_ROW,
    ROW,
    WITHOUT_PRIVACY,
    PrivacyUnit,
    privacy_of,
    privacy_statement,
)

VERBS = {"add_remove": "is added or removed", "zero_out": "is emptied", "replace_one": "is replaced by another"}
UNITS = {
    PrivacyUnit(): "one row",
    PrivacyUnit(name=NIGHT_ROW): "one row of one night",
    PrivacyUnit(name="patient_id", rows=None): "one patient (`patient_id`)",
    PrivacyUnit(name="patient_id", rows=1): "one patient (`patient_id`, at most 1 row)",
    PrivacyUnit(name="patient_id", rows=3): "one patient (`patient_id`, at most 3 rows)",
}


@pytest.mark.parametrize(("relation", "unit"), [*itertools.product(VERBS, UNITS)], ids=str)
def test_a_guarantee_is_one_sentence_for_every_relation_and_unit(relation: str, unit: PrivacyUnit) -> None:
    message = privacy_statement(epsilon=0.186, delta=1e-7, relation=relation, unit=unit)
    assert message == f"(0.186, 1e-7)-differential privacy when {UNITS[unit]} {VERBS[relation]}"
    manifest = {"privacy": {"epsilon": 0.186, "delta": 1e-7, "relation": relation, **unit.facts}}
    assert privacy_of(manifest) == message


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("patient_id", "patient"),
        ("PATIENT_ID", "PATIENT"),
        ("household_member_id", "household member"),
        ("größe_id", "größe"),
        ("user-7_id", "user-7"),
        ("who", "who"),
        ("patientId", "patientId"),
        ("id", "id"),
        ("_id", "unit"),
        ("__id", "unit"),
        ("_", "unit"),
        ("0", "unit"),
        ("7_id", "unit"),
        ("<script>alert(1)</script>_id", "unit"),
        ("**bold**_id", "unit"),
        ("[a](http://b)_id", "unit"),
        ('a"b_id', "unit"),
        ("it's_id", "unit"),
        ("a|b_id", "unit"),
        ("n" * LONGEST, "n" * LONGEST),
    ],
)
def test_the_noun_of_a_unit_is_made_of_plain_words(name: str, noun: str) -> None:
    assert str(PrivacyUnit(name=name, rows=None)) == f"one {noun} (`{name}`)"


@given(st.text(max_size=LONGEST + 5))
def test_any_unit_name_gives_one_safe_line_or_is_refused(name: str) -> None:
    try:
        unit = PrivacyUnit.requested(name, 2)
    except Invalid as refused:
        line = str(refused)
        assert line.isprintable()
        assert len(line) < 400
        assert line.endswith(".")
        return
    message = str(unit)
    assert message.isprintable()
    assert message.count("`") == 2  # the name contains no backtick, which would end its Markdown code span
    assert f"`{name}`" in message
    assert set(unit.noun).isdisjoint("<>&\"'`*_[]()|#\\")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *(("", 1), (" ", 1), (" a", 1), ("a\n", 1), ("a\tb", 1), ("a`b", 1), ("n" * (LONGEST + 1), 1), ("\u202ea", 1)),
        *((ROW, None), (ROW, 1), (NIGHT_ROW, 1), (None, 3), (None, 0), ("a", 0), ("a", -1), ("a", 2**63)),
        *(("a", True), ("a", 1.5), (7, 1), ([], 1)),
    ],
    ids=str,
)
def test_an_invalid_unit_is_refused_in_one_line(name: Any, rows: Any) -> None:
    with pytest.raises(Invalid) as refused:
        PrivacyUnit.requested(name, rows)
    assert "\n" not in str(refused.value)


@given(st.floats(min_value=1e-300, max_value=1e6))
def test_stated_numbers_are_never_rounded_down(number: float) -> None:
    message = privacy_statement(epsilon=number, delta=0.0, relation="add_remove", unit=PrivacyUnit())
    declared = Decimal(message[1 : message.index(",")])
    assert Decimal(repr(number)) <= declared <= Decimal(repr(number)) * Decimal("1.00002")


def test_a_dataset_is_covered_by_the_same_ids_and_no_more_rows() -> None:
    def unit(name: str, rows: int | None) -> PrivacyUnit:
        return PrivacyUnit(name=name, rows=rows)

    assert unit("who", None).covers(unit("who", 9))
    assert unit("who", 3).covers(unit("who", 3))
    assert unit("who", 3).covers(unit("who", 2))
    assert not unit("who", 3).covers(unit("who", 4))
    assert not unit("who", 3).covers(unit("who", None))
    assert not unit("who", None).covers(unit("Who", None))
    assert not unit("who", None).covers(PrivacyUnit())
    assert not PrivacyUnit().covers(unit("who", 1))
    assert PrivacyUnit().covers(PrivacyUnit())


def test_the_sentence_of_a_release_without_guarantee_states_this() -> None:
    assert privacy_statement(epsilon=None, delta=None, relation="add_remove", unit=PrivacyUnit()) == WITHOUT_PRIVACY
    assert (
        privacy_statement(epsilon=float("inf"), delta=0.0, relation="zero_out", unit=PrivacyUnit()) == WITHOUT_PRIVACY
    )
    assert privacy_of({"privacy": {"private": False, "epsilon": None}}) == WITHOUT_PRIVACY


PRIVACY: dict[str, Any] = {"epsilon": 1.0, "delta": 0.0, "relation": "add_remove", "unit": "who"}


@pytest.mark.parametrize(
    "manifest",
    [
        *({}, {"privacy": None}, {"privacy": []}, {"privacy": {}}, {"privacy": PRIVACY, "plan": None}),
        {"privacy": {name: fact for name, fact in PRIVACY.items() if name != "unit"}},
        *({"privacy": PRIVACY | changed} for changed in ({"unit": "a`b"}, {"unit": 7}, {"relation": "x"})),
        *({"privacy": PRIVACY | changed} for changed in ({"epsilon": "x"}, {"rows_per_unit": -1}, {"unit": "n" * 999})),
    ],
    ids=str,
)
def test_facts_without_a_guarantee_have_no_sentence(manifest: Any) -> None:
    assert privacy_of(manifest) is None


def test_a_printed_formula_is_stated_with_its_true_epsilon() -> None:
    message = privacy_of({"privacy": PRIVACY, "plan": {"real_epsilon_at_most": 1.5}})
    assert message == "(1.5, 0)-differential privacy when one who (`who`) is added or removed"
    assert str(privacy_of({"privacy": PRIVACY, "plan": {"real_epsilon_at_most": 0.5}})).startswith("(1, 0)-")
