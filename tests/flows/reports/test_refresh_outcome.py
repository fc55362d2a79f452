"""Every arrival of a run is counted once, by how it ended."""

from flows.reports.refresh_outcome import RefreshOutcome


def test_an_arrival_that_ended_is_counted_and_the_others_are_left() -> None:
    run = RefreshOutcome(published="map", left=4)
    run.end("set_aside")
    run.end("set_aside")
    run.end("kept_back")
    run.decisions.append({"decision": "promoted"})
    facts = run.report()
    assert next(iter(facts.items())) == ("outcome", "1 promoted, 1 kept back, 2 set aside, 1 left")
    assert {name: facts[name] for name in ("promoted", "held", "kept_back", "refused", "set_aside", "left")} == {
        **{"promoted": 1, "held": 0, "kept_back": 1, "refused": 0, "set_aside": 2, "left": 1}
    }


def test_a_run_without_arrivals_says_so() -> None:
    assert RefreshOutcome(published="map").report()["outcome"] == "nothing arrived"
