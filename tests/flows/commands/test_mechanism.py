"""What the command tells of mechanisms, without a home or data."""

import json

from tests.flows.conftest import Command


def test_the_table_of_truth_for_machines(dpca: Command) -> None:
    ending = dpca("mechanism", "truth", "--formula", "wishart", "--formula", "smooth_cauchy", "--json")
    rows = json.loads(ending.out)
    assert ending.status == 0
    assert {row["formula"] for row in rows} == {"wishart", "smooth_cauchy"}
    assert all(row["agrees"] and row["source"] and row["noise"] > 0 for row in rows)
    wishart = [row for row in rows if row["formula"] == "wishart"]
    assert [row["true_epsilon_at_least"] for row in wishart] == [None, None], "no epsilon without delta"
    assert all("support" in row["condition_broken"] for row in wishart)
    cauchy = next(row for row in rows if row["formula"] == "smooth_cauchy" and row["claimed_epsilon"] == 0.1)
    assert 0.033 < cauchy["true_epsilon_at_least"] < cauchy["true_epsilon_at_most"] < 0.0334
    assert cauchy["condition_broken"] is None


def test_the_table_of_truth_for_readers(dpca: Command) -> None:
    out = dpca("mechanism", "truth", "--formula", "wishart", "--formula", "mod_sulq").out
    assert "no epsilon at this delta" in out
    assert "holds, by delta alone" in out


def test_an_unknown_formula_is_refused_in_one_line(dpca: Command) -> None:
    ending = dpca("mechanism", "truth", "--formula", "sparkle")
    assert ending.status == 1
    assert "use one of analyze_gauss" in ending.err
