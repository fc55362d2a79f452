"""``dpca reproduce``: check expected numbers on synthetic and public data."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Reproduce expected numbers; each check states its tolerance.")

Direct = Annotated[bool, typer.Option("--direct", help="Run without Prefect.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Data = Annotated[Path, typer.Option(help="The folder that make data filled; what is not there is left out.")]


@app.callback()
def reproduce() -> None:
    """Reproduce expected numbers; each check states its tolerance."""


@app.command()
def mechanisms(
    runs: Annotated[int, typer.Option(min=1, help="Runs whose mean is compared.")] = 10,
    only: Annotated[list[str] | None, typer.Option("--mechanism", help="Only this mechanism's cases.")] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check the captured variance of every mechanism on a matrix like a9a; no data are read, nothing is spent."""
    from flows.reproductions import expected_variance as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_mechanisms, of.check_mechanisms, direct=direct, runs=runs, mechanisms=only)
    print_checks(found, as_json=as_json, empty="no such mechanism has an expected number")


@app.command()
def advice(
    data: Data = Path("data"),
    wide: Annotated[bool, typer.Option("--wide", help="Check sparse text of 20,958 columns too.")] = False,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Compare the advisor's warnings, choices and expectations with runs on a9a, flat data, MNIST and Reuters.

    The data are public and the noise comes from seeds, so nothing is spent. MNIST and Reuters take several minutes.
    """
    from flows.reproductions import advice as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_advice, of.check_advice, direct=direct, data=str(data), wide=wide)
    print_checks(found, as_json=as_json)


@app.command()
def denoise(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean is compared; tolerances are for 5.")] = 5,
    data: Data = Path("data"),
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check what refining gains on a9a, MNIST, Reuters and made data, and what releases say of their own quality.

    The data are public and the noise comes from seeds, so nothing is spent. It takes about ten minutes of one
    processor, most of it for MNIST and Reuters.
    """
    from flows.reproductions import denoise as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_denoise, of.check_denoising, direct=direct, runs=runs, data=str(data))
    print_checks(found, as_json=as_json)


@app.command()
def continual(
    runs: Annotated[int, typer.Option(min=1, help="Random orders of a9a whose mean is compared.")] = 3,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check streams: sensitivities, factors, events and attacks, and what nightly estimates of a9a capture.

    The data are public and the keys come from seeds, so nothing is spent. It takes about a minute of one processor.
    """
    from flows.reproductions import continual as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(of.reproduce_continual, of.check_continual, direct=direct, runs=runs)
    print_checks(found, as_json=as_json)


@app.command()
def smooth(
    runs: Annotated[int, typer.Option(min=1, help="Runs whose median is compared; tolerances are for 9.")] = 9,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check the theorems of smooth sensitivity on planted spectra, where it passes other mechanisms, its constants.

    The data are made, so nothing is spent. With --json also the eigengaps that mechanisms need, and the crossings.
    """
    from flows.reproductions import smooth as of
    from flows.reproductions.checks import print_checks, run_reproduction

    print_checks(run_reproduction(of.reproduce_smooth, of.check_smooth, direct=direct, runs=runs), as_json=as_json)


@app.command()
def board(
    data: Data = Path("data"),
    peers: Annotated[
        Path | None,
        typer.Option(help="The Python that has diffprivlib and OpenDP; .venv-peers of make bench where it is built."),
    ] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="An epsilon; .1, 1 and 4 by default.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="A data set; all that are there by default.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs whose mean is stated.")] = 3,
    limit: Annotated[float, typer.Option(min=0.1, help="Seconds of processor time that a cell may take.")] = 60.0,
    page: Annotated[Path | None, typer.Option(help="The Markdown file to write.")] = None,
    cells: Annotated[
        Path | None, typer.Option(help="A file of finished cells: those in it are not run again, others are added.")
    ] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Compare all mechanisms with two libraries and three published covariance methods on real data.

    The data are public, so nothing is spent. The checks compare the best of ours with the best of the others; --page
    and --json have every cell: captured variance, seconds, the epsilon that each really gives, and what did not finish.
    """
    from flows.reproductions import board as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_board,
        of.make_board,
        direct=direct,
        data=str(data),
        peers=None if peers is None else str(peers),
        epsilons=epsilon,
        names=dataset,
        runs=runs,
        limit=limit,
        page=None if page is None else str(page),
        cells=None if cells is None else str(cells),
    )
    print_checks(found, as_json=as_json)


@app.command("dps-pca")
def dps_pca(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean distance is compared; figures are of one.")] = 3,
    out: Annotated[Path | None, typer.Option(help="A folder for tables (CSV) and figures (SVG, PNG).")] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check DPS-PCA and the methods beside it on the model of its paper: figures 2 to 4 and the times of table 1.

    Every record's bound is enforced, also under the paper's formula. The rows are made, so nothing is spent. It takes
    some ten minutes of one processor and 4 GB of memory. --json has the tables of the figures too.
    """
    from flows.reproductions import dps_pca as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_dps_pca, of.check_dps_pca, direct=direct, runs=runs, out=None if out is None else str(out)
    )
    print_checks(found, as_json=as_json)


@app.command("cape-pca")
def cape_pca(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean energy is compared.")] = 3,
    data: Data = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="A folder for the table (CSV, Markdown) and the figures (SVG, PNG).")
    ] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check capePCA over several sites and its baselines on the model of its paper and on MNIST.

    Energies along epsilon, delta, records and sites, what the printed noise really gives, and Proposition 1. The rows
    are made or public and stay in this process, so nothing is spent. It takes several minutes of one processor.
    """
    from flows.reproductions import cape_pca as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_cape_pca,
        of.check_cape_pca,
        direct=direct,
        runs=runs,
        data=str(data),
        out=None if out is None else str(out),
    )
    print_checks(found, as_json=as_json)


@app.command("cape-agn")
def cape_agn(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean error is compared; expectations are for 10.")] = 10,
    out: Annotated[Path | None, typer.Option(help="A folder for tables (CSV) and figures (SVG, PNG).")] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check capeAGN over five sites and its baselines on topics and mixtures as its paper draws them.

    Errors of components and of weights along epsilon, delta and records. The records are made and stay in this process,
    so nothing is spent. It takes several minutes of one processor.
    """
    from flows.reproductions import cape_agn as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_cape_agn, of.check_cape_agn, direct=direct, runs=runs, out=None if out is None else str(out)
    )
    print_checks(found, as_json=as_json)


@app.command()
def fmri(
    runs: Annotated[int, typer.Option(min=1, help="Draws whose mean energy is compared.")] = 3,
    data: Data = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="A folder for the table (CSV, Markdown) and the figure (SVG, PNG).")
    ] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check capePCA and its baselines on fMRI scans of seven subjects, one site a subject, and where these are too few.

    A record is one time point, not a person: epsilon holds for a time point, and a second sweep is of a whole scan. The
    scans are public and the noise comes from seeds, so nothing is spent. It takes half a minute.
    """
    from flows.reproductions import fmri as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_fmri,
        of.check_fmri,
        direct=direct,
        runs=runs,
        data=str(data),
        out=None if out is None else str(out),
    )
    print_checks(found, as_json=as_json)


@app.command()
def dpals(
    data: Data = Path("data"),
    runs: Annotated[int, typer.Option(min=1, help="Draws whose median is compared; expectations are for 5.")] = 5,
    share: Annotated[
        float, typer.Option(help="The share of the stated users; expectations are for 1, less shows that all runs.")
    ] = 1.0,
    movielens: Annotated[
        Path | None, typer.Option(help="A folder with ratings of MovieLens: 100K, 1M, 10M, 20M or 25M.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for tables (CSV) and figures (SVG, PNG).")] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check private alternating least squares on its paper's task, on ratings of skewed popularity, and on films.

    Ratings are made or public and keys come from seeds, so nothing is charged; every epsilon is exact. --json has the
    tables of the figures too.
    """
    from flows.reproductions import dpals as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_dpals,
        of.check_dpals,
        direct=direct,
        data=str(data),
        runs=runs,
        share=share,
        movielens=None if movielens is None else str(movielens),
        out=None if out is None else str(out),
    )
    print_checks(found, as_json=as_json)


@app.command()
def shang(
    data: Data = Path("data"),
    cifar10: Annotated[Path | None, typer.Option(help="CIFAR-10: svmlight text, batches, or their archive.")] = None,
    real_sim: Annotated[Path | None, typer.Option(help="real-sim: svmlight text, plain or compressed.")] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set: a9a, MNIST, CIFAR-10, real-sim or text.")
    ] = None,
    splits: Annotated[int, typer.Option(min=2, help="Paired splits of each data set.")] = 8,
    draws: Annotated[int, typer.Option(min=1, help="Draws of each compared arm in a split of a9a.")] = 5,
    text_features: Annotated[
        int, typer.Option(min=100, help="Columns of the made text; 20958 are real-sim's, and take most of an hour.")
    ] = 1_048,
    out: Annotated[
        Path | None, typer.Option(help="A folder for tables (CSV, Markdown) and figures (SVG, PNG).")
    ] = None,
    direct: Direct = False,
    as_json: Json = False,
) -> None:
    """Check the tables and the figure of Shang et al. on real data: every mechanism, published and tight.

    Distances and captured variance against epsilon, and what a linear SVM loses in private subspaces, with the true
    epsilon of each arm. The data are public and the keys come from seeds, so nothing is spent.
    """
    from flows.reproductions import shang as of
    from flows.reproductions.checks import print_checks, run_reproduction

    found = run_reproduction(
        of.reproduce_shang,
        of.check_shang,
        direct=direct,
        data=str(data),
        cifar10=None if cifar10 is None else str(cifar10),
        real_sim=None if real_sim is None else str(real_sim),
        datasets=dataset,
        splits=splits,
        draws=draws,
        text_features=text_features,
        out=None if out is None else str(out),
    )
    print_checks(found, as_json=as_json)
