"""The curator's page of datasets: declared facts of each, and no count of anything that is private."""

from typing import Any

from storage.workspace import Workspace


def dataset_facts(workspace: Workspace) -> dict[str, Any]:
    """Return one row a dataset: population, columns, the declared bound on its records, its unit, time of ingest."""
    return {
        "datasets": [
            {
                "dataset": entry.name,
                "population": entry.population,
                "n_features": entry.n_features,
                "records_at_most": entry.records_at_most,
                **entry.privacy_unit.facts,
                "unit_in_words": str(entry.privacy_unit),
                "ingested": entry.created_at,
            }
            for entry in workspace.catalog.entries()
        ]
    }
