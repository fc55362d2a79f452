"""Charts of pages: drawn once, in the colours of either theme."""

import json
import re

import pytest

from flows.reports.charts import render
from flows.reports.release_charts import budget_chart, loadings_chart, scree_chart
from flows.reports.spectrum import Spectrum
from flows.web.drawing import in_theme

SPECTRUM = Spectrum(eigenvalues=(900.0, 400.0, 60.0, 50.0, 30.0), n_components=3, noise_edge=100.0)
ROWS = [{"feature": name, "loading": size} for name, size in (("#ffffff", 0.8), ("age", -0.5), ("pulse", 0.1))]
RELEASE = {"release": "r" * 32, "epsilon": 0.5, "remaining": 3.4, "state": "committed", "time": "2026-11-23T10:00:00"}
BUDGET = {"population": "people", "epsilon": 4.0, "delta": 1e-6, "remaining": 3.4, "spent": 0.5, "releases": [RELEASE]}


def without_ids(chart: bytes) -> bytes:
    """Drop the names of parts, which Matplotlib makes of their content, and so of their colours."""
    return re.sub(rb'(id="|url\(#|href="#)[A-Za-z0-9_]+', rb"\1", chart)


@pytest.mark.parametrize("chart", ["scree", "loadings", "budget"])
def test_a_chart_in_a_theme_is_the_one_that_is_drawn_in_it(chart: str) -> None:
    def drawn(theme: str) -> bytes:
        match chart:
            case "scree":
                return render(scree_chart(SPECTRUM, name="a@1", theme=theme))
            case "loadings":
                return render(loadings_chart(ROWS, component=1, name="a@1", theme=theme))
        facts = {**BUDGET, "releases": [{**RELEASE, "artifact": "a@1", "mechanism": "analyze_gauss", "event": {}}]}
        return render(budget_chart(json.loads(json.dumps(facts)), theme=theme))

    light, dark = drawn("light"), drawn("dark")
    assert in_theme(light, "light") == light
    assert without_ids(in_theme(light, "dark")) == without_ids(dark) != without_ids(light)
