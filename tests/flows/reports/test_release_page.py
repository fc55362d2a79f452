"""Command `registry show`: it prints a readable page, with the verdict first, then each fact with its meaning."""

import json
from pathlib import Path

import pytest

from flows.releases.stages import _MEASURES
from flows.reports.release_page import LABELS, formatted, label, meaning, quality_of, release_page, rounded_down
from tests.flows.conftest import Command


def test_every_fact_of_quality_has_a_label_and_a_meaning_which_the_documents_state() -> None:
    page = Path("docs/reference/artifact.md").read_text(encoding="utf-8")
    for name in [name for name in _MEASURES if name != "verdict"]:
        assert name in LABELS, name
        assert meaning(name), name
    for name, (text, means) in LABELS.items():
        assert f"| `{name}` | {text} | {means} |" in page


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (0.186191, "share", "0.186"),
        (0.1869, "share_low", "0.186"),
        (0.99999, "cv_low", "0.999"),
        (41.822, "noise_std", "41.8"),
        (323862.6, "captured", "323,863"),
        (True, "failed", "yes"),
        (None, "users", "-"),
        (49, "above_noise", "49"),
    ],
)
def test_a_fact_is_stated_in_three_digits_and_a_lower_bound_is_rounded_down(
    value: object, name: str, text: str
) -> None:
    assert formatted(value, name=name) == text


def test_rounding_down_never_rounds_up() -> None:
    for value in (0.1, 0.2999, 0.7148, 1.0, 123456.0):
        assert rounded_down(value, digits=3) <= value


def test_a_release_is_shown_as_a_page_and_as_json(released: Path, dpca: Command) -> None:
    facts = json.loads(dpca("registry", "show", "sub", "--json").out)
    shown = dpca("registry", "show", "sub").out
    assert shown == release_page(facts) + "\n"
    verdict = facts["verdict"]
    lines = shown.splitlines()
    assert lines[0].startswith("sub@1")
    assert verdict[1:30] in " ".join(lines[:6])
    for text in ("Guarantee\n", facts["statement"], "Quality\n", "Terms\n", "Origin\n", facts["release"]):
        assert text in shown
    for name in quality_of(facts["manifest"]["outcome"]):
        assert label(name) in shown
    assert max(len(line) for line in lines if "sha256" not in line) <= 80


def test_a_result_without_privacy_is_marked() -> None:
    assert "NOT PRIVATE" in release_page({"artifact": "map@1", "private": False, "manifest": {}})
