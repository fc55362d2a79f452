"""``dpca demo``: the main job, end to end, in one command."""

from pathlib import Path
from typing import Annotated

import typer

from flows.reports.activity import activity
from flows.reports.outcome import outcome_line
from flows.reports.terminal import STDERR, print_facts


def demo(
    home: Annotated[
        Path | None, typer.Option(help="The demo's folder; one of its own beside the platform's data by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Release a private subspace of the shipped a9a data, publish it, and read it back as a consumer.

    All of it stays in a home of the demo's own, whatever DPCA_HOME and the other settings of places say.
    """
    with activity("starting"):
        from flows import demo as job
        from flows.families.restated_subspace import noise_edge_of
        from flows.reports.charts import write_chart
        from flows.reports.release_charts import scree_chart
        from flows.reports.spectrum import Spectrum
        from storage.registry.reader import Registry

    with job.own_home(home) as folder:
        with activity("preparing"):
            job.prepare(STDERR.print)
        with activity("releasing"):
            report = job.release()
        if report["reused"]:
            STDERR.print("this release was made before: it is reused, and nothing was spent")
        subspace = Registry.open().load(f"{job.SUBSPACE}@{job.ALIAS}")
    scores = subspace.transform([[1.0] * subspace.n_features])
    STDERR.print(f"read back as a consumer: one row of {subspace.n_features} features has {scores.shape[1]} scores")
    plot = folder / "demo-spectrum.png"
    spectrum = Spectrum.of(subspace, noise_edge=noise_edge_of(subspace))
    with activity("drawing the spectrum"):
        write_chart(scree_chart(spectrum, name=report["artifact"]), plot)
    STDERR.print(f"{spectrum.text()}\n{subspace.outcome.get('verdict', '')}\nthe same as a picture: {plot}")
    STDERR.print(f"look around with DPCA_HOME={folder}, in a shell of its own: `dpca serve` shows it in a browser")
    if not as_json:
        typer.echo(outcome_line(report))
    print_facts({**report, "alias": job.ALIAS, "home": str(folder), "plot": str(plot)}, as_json=as_json)
