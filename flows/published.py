"""Operations on published releases that charge nothing.

`diagnose` computes exact diagnostics, without noise, for the curator, who may see the data. The others read no row:
`refit_release` publishes a released subspace with another number of components, `derive_release` publishes models and
correlations of a released moment, and `sample_release` draws synthetic rows from it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpca.artifacts.base import Artifact
from dpca.artifacts.files import write_artifact
from dpca.artifacts.moment import PrivateMoment
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import write_atomically, writing
from dpca.errors import Invalid
from dpca.home import WORKERS, home
from dpca.registry.pointers import Pointer, check_name
from dpca.registry.reader import Registry
from dpca_tasks.accounting.events import non_private
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.families.base import family_of
from flows.families.evaluation import EvaluationFamily
from flows.releases.running import summing
from flows.releases.stages import digest_of, release_facts
from flows.requests import EvaluationRequest
from flows.settings import cluster_settings
from storage.workspace import Workspace

NOTICE = (
    "computed without noise: these numbers are NOT private. They are only for the curator "
    "and must not be published; --release charges for an estimate that may be published."
)


def diagnose(request: EvaluationRequest, *, workers: int | None = None) -> dict[str, Any]:
    """Compute the quality of a release on the newest snapshot of a dataset, without noise.

    Nothing is charged and no result is stored: no artifact, ledger, log or Prefect run contains it. The returned values
    must stay inside the trust boundary.

    Parameters
    ----------
    request : EvaluationRequest
        Names the release, by any reference, and a dataset with the same columns. Its epsilon and delta are not used.
    workers : int, optional
    """
    settings, workspace, family = cluster_settings(workers), Workspace.read_only(), family_of(request)
    check_address(settings)
    assert isinstance(family, EvaluationFamily)
    evaluated, snapshot = family.evaluated(request), workspace.catalog.current(request.dataset)
    rows, compute = family.diagnosis(request, evaluated, workspace, snapshot)
    with open_cluster(settings, scratch=home() / WORKERS) as address, connect(address) as client:

        def new_curator() -> DisclosingCurator:
            reservation = InMemoryReservation(event=non_private())
            return DisclosingCurator(
                rows, reservation, i_know_this_is_not_private=True, client=client, progress=summing()
            )

        found = compute(new_curator)
    about = {"evaluated": str(evaluated.version), "dataset": request.dataset, "snapshot": snapshot.snapshot}
    return {"private": False, "notice": NOTICE, **about, **found}


def refit_release(reference: str, *, components: int | str, publish: str, refine: str | None = None) -> dict[str, Any]:
    """Publish a subspace of ``components`` directions of a published release under another name.

    Parameters
    ----------
    reference : str
        A published subspace. Its digest becomes the parent of the new artifact.
    components : int or "auto"
        At most the number of directions that the release kept.
    refine : str, optional
        How to refine the components. By default they are refined as in the release.
    publish : str
        The name to publish under. A release has one artifact under each name, so every number of components needs a
        separate name.

    Returns
    -------
    dict
        The public facts of the published version, with ``reused`` if the name already had this version.
    """
    from flows.families.restated_subspace import restate_subspace

    check_name(publish)
    registry = Registry.open()
    resolved, subspace = registry.resolve(reference), registry.load(reference, PrivateSubspace)
    made = restate_subspace(subspace, n_components=components, refine=refine, parent=resolved.digest)
    return _published(made, publish)


def moment_of(reference: str, registry: Registry) -> PrivateMoment:
    """Load a released moment, or the moment that a released subspace kept, as a matrix or as answers of rounds.

    Parameters
    ----------
    reference : str
        A published moment or subspace.
    registry : Registry

    Raises
    ------
    Invalid
        If the artifact is of another kind, or keeps no matrix.
    """
    artifact = registry.load(reference)
    if isinstance(artifact, PrivateMoment):
        return artifact
    if not isinstance(artifact, PrivateSubspace):
        raise Invalid(f"{reference} is a {artifact.noun}; name a moment, or a subspace that kept its matrix")
    digest = registry.resolve(reference).digest
    if artifact.answers is None:
        return artifact.moment(parent=digest)
    from flows.families.restated_subspace import moment_of_rounds

    return moment_of_rounds(artifact, parent=digest)


def derive_release(
    reference: str, made: Callable[[PrivateMoment, str], Artifact], *, publish: str
) -> tuple[dict[str, Any], Artifact]:
    """Publish an artifact that is computed from the moment of a release; nothing is charged, and no row is read.

    Parameters
    ----------
    reference : str
        A published moment, or a subspace that kept its matrix.
    made : callable
        Computes the artifact from the moment and the digest of the release, which becomes its parent.
    publish : str
        The name to publish under. A release has one artifact under each name.

    Returns
    -------
    tuple of dict and Artifact
        The public facts of the published version, and the artifact.
    """
    check_name(publish)
    registry = Registry.open()
    artifact = made(moment_of(reference, registry), registry.resolve(reference).digest)
    return _published(artifact, publish), artifact


def sample_release(reference: str, output: Path, *, n_rows: int, seed: int = 0) -> dict[str, Any]:
    """Write synthetic rows with the mean and covariance of a released moment to a CSV or Parquet file.

    Parameters
    ----------
    reference : str
        A published moment with a mean, or a subspace with a mean that kept its matrix.
    output : Path
        Its suffix selects the format: .csv or .parquet.
    n_rows : int
    seed : int
        The public seed of the draws.

    Returns
    -------
    dict
        A report that compares the written rows, after encoding them again, with the release. It contains the
        differences of means and of correlations: ``rms`` is their root mean square, and ``noise`` is the root mean
        square of the released standard errors. ``parent`` is the digest of the release, which a Parquet file also
        contains.

    Raises
    ------
    Invalid
        If the suffix is another one, or the release has no mean.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    writers = {".csv": pyarrow.csv.write_csv, ".parquet": pyarrow.parquet.write_table}
    if output.suffix not in writers:
        raise Invalid(f"the suffix of {output.name} must be .csv or .parquet; name such a file")
    registry = Registry.open()
    moment, parent = moment_of(reference, registry), registry.resolve(reference).digest
    drawn = moment.sample(n_rows, seed=seed)
    table, again = pa.table(dict(zip(moment.feature_names, drawn.T, strict=True))), drawn
    if moment.encoder is not None:
        from dpca.schemas.encoder import decode

        table = decode(moment.encoder.schema, drawn)
        again = moment.encoder.transform(table) if table.num_columns else drawn
    buffer = pa.BufferOutputStream()
    writers[output.suffix](table.replace_schema_metadata({"dpca.parent": parent}), buffer)
    with writing(output.absolute().parent):
        write_atomically(output.absolute(), buffer.getvalue().to_pybytes())
    mean, correlation, pairs = moment.mean(), moment.correlation(), np.triu_indices(moment.n_features, 1)
    known = (correlation.errors < 1.0)[pairs]
    spread = again.std(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.nan_to_num(np.corrcoef(again.T)) if len(spread) > 1 else np.ones((1, 1))
    return {
        "rows": n_rows,
        "output": str(output),
        "parent": parent,
        "matches": "means and correlations up to the noise; nothing else",
        "mean_rms": _rms(again.mean(axis=0) - mean.values),
        "mean_noise": _rms(mean.errors),
        "correlation_rms": _rms((found - correlation.values)[pairs][known]),
        "correlation_noise": _rms(correlation.errors[pairs][known]),
    }


def _rms(values: Any) -> float | None:
    return float(np.sqrt(np.mean(np.square(values)))) if np.size(values) else None


def _published(made: Artifact, publish: str) -> dict[str, Any]:
    """Write a derived artifact and publish it as a version of a name; return its public facts."""
    workspace = Workspace.open()
    registry = Registry.open()
    digest = write_artifact(made, home=workspace.home, place=workspace.store)
    release_id = str(made.manifest["release"])
    before = Pointer.read(registry.place, publish).versions if publish in registry.names() else {}
    artifact_digest = digest_of(workspace.ledger, release_id)
    number = workspace.publish(release_id, name=publish, artifact_digest=artifact_digest, made=digest)
    return release_facts(workspace, f"{publish}@{number}", reused=number in before)
