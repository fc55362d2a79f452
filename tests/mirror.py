"""Which test covers a source file that has no test file of its own.

``pkg/a/b.py`` is tested by ``tests/pkg/a/test_b.py``; where one test is about several files, it has a row here.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("dpca_tasks", "flows", "papers", "storage")

ROWS = {
    # accounting
    "dpca_tasks/accounting/test_filters.py": """
        dpca_tasks/accounting/charges.py dpca_tasks/accounting/prices.py dpca_tasks/accounting/rounding.py
    """,
    "dpca_tasks/accounting/test_truth.py": """
        dpca_tasks/accounting/closed_brackets.py dpca_tasks/accounting/formula.py
        dpca_tasks/accounting/joint_releases.py dpca_tasks/accounting/published_dps_pca.py
        dpca_tasks/accounting/published_elsewhere.py dpca_tasks/accounting/published_settings.py
    """,
    "dpca_tasks/accounting/test_calibration.py": """
        dpca_tasks/accounting/pure.py dpca_tasks/accounting/step_losses.py dpca_tasks/accounting/subsampled.py
    """,
    "dpca_tasks/privacy/test_charged_terms.py": """
        dpca_tasks/accounting/relation.py dpca_tasks/privacy/request.py dpca_tasks/privacy/ways/disclose.py
        dpca_tasks/privacy/ways/perturb.py dpca_tasks/queries/sampled_passes.py
    """,
    "dpca_tasks/accounting/test_factorisation.py": "dpca_tasks/accounting/power_series.py",
    # audit
    "audits/test_mechanisms.py": """
        dpca_tasks/audit/attacks.py dpca_tasks/audit/neighbours.py dpca_tasks/audit/subjects.py
        dpca_tasks/audit/subspace.py
    """,
    "audits/test_planted_bugs.py": "dpca_tasks/audit/densities.py",
    # rows and sums
    "dpca_tasks/kernels/test_kernels.py": """
        dpca_tasks/kernels/dense_products.py dpca_tasks/kernels/int16_pairs.py dpca_tasks/kernels/long_records.py
        dpca_tasks/kernels/outer_packed.py dpca_tasks/kernels/outer_sparse.py dpca_tasks/kernels/panels.py
        dpca_tasks/kernels/prefetch.py
        dpca_tasks/kernels/products.py
    """,
    "dpca_tasks/queries/test_many_rows.py": "dpca_tasks/kernels/norms.py",
    "dpca_tasks/queries/test_rejected_records.py": "dpca_tasks/mechanisms/parts/rejected_share.py",
    "dpca_tasks/queries/test_captured_energies.py": "dpca_tasks/kernels/record_energies.py",
    "dpca_tasks/queries/test_prediction_scores.py": "dpca_tasks/kernels/held_out_ratings.py",
    "dpca_tasks/queries/test_recentred_moment.py": "dpca_tasks/kernels/recentred_gridding.py",
    "dpca_tasks/queries/test_word_pairs.py": "dpca_tasks/queries/documents.py",
    "dpca_tasks/queries/test_word_triples.py": "dpca_tasks/kernels/word_moments.py",
    "dpca_tasks/queries/test_point_triples.py": "dpca_tasks/kernels/point_moments.py",
    "dpca_tasks/records/test_blocks.py": """
        dpca_tasks/kernels/gridding.py dpca_tasks/noise/grid.py dpca_tasks/records/gridding.py
        dpca_tasks/records/sources.py
    """,
    "dpca_tasks/sums/test_cluster_sum.py": "dpca_tasks/addresses.py dpca_tasks/sums/partial_sums.py",
    "dpca_tasks/sums/test_resident_rows.py": "dpca_tasks/sums/partitions.py",
    # queries and the gate
    "dpca_tasks/queries/test_sensitivity.py": """
        dpca_tasks/queries/base.py dpca_tasks/queries/norm_histogram.py dpca_tasks/queries/poisson_sampled.py
        dpca_tasks/queries/second_moment.py
    """,
    "dpca_tasks/queries/test_running_totals.py": """
        dpca_tasks/queries/augmented_moment.py dpca_tasks/queries/record_mean.py dpca_tasks/queries/replaced_product.py
    """,
    "dpca_tasks/privacy/test_curator.py": """
        dpca_tasks/privacy/reservation.py dpca_tasks/privacy/rows.py dpca_tasks/privacy/ways/release.py
        dpca_tasks/queries/locally_noised.py dpca_tasks/queries/step_secrets.py
    """,
    "dpca_tasks/privacy/test_gate.py": "dpca_tasks/privacy/units.py dpca_tasks/privacy/ways/sequential.py",
    "dpca_tasks/privacy/test_local_site.py": "dpca_tasks/privacy/ways/share.py",
    "dpca_tasks/privacy/test_released_operator.py": "dpca_tasks/privacy/ways/release_operator.py",
    "dpca_tasks/mechanisms/subspace/test_non_private.py": "dpca_tasks/privacy/disclosure.py",
    "dpca_tasks/queries/test_item_statistics.py": """
        dpca_tasks/kernels/item_sums.py dpca_tasks/kernels/rating_rows.py dpca_tasks/kernels/user_factors.py
        dpca_tasks/queries/item_totals.py dpca_tasks/queries/ratings.py
    """,
    "dpca_tasks/privacy/test_released_tiles.py": """
        dpca_tasks/privacy/ways/release_tiles.py dpca_tasks/queries/tiled_sum.py dpca_tasks/sums/prepared_blocks.py
    """,
    "dpca_tasks/queries/test_rating_moment.py": "dpca_tasks/kernels/rating_descent.py",
    # noise and mechanisms
    "dpca_tasks/mechanisms/completion/test_item_means.py": "dpca_tasks/mechanisms/parts/ratings.py",
    "dpca_tasks/mechanisms/completion/test_dpals.py": """
        dpca_tasks/mechanisms/parts/factor_grid.py dpca_tasks/mechanisms/parts/item_start.py
        dpca_tasks/mechanisms/parts/round_noises.py
    """,
    "dpca_tasks/mechanisms/completion/test_als.py": """
        dpca_tasks/mechanisms/parts/exact_rounds.py dpca_tasks/privacy/ways/disclose_parts.py
    """,
    "dpca_tasks/mechanisms/completion/test_one_shot.py": """
        dpca_tasks/mechanisms/completion/dpsvd.py dpca_tasks/mechanisms/parts/rating_moment.py
    """,
    "dpca_tasks/mechanisms/tensors/test_agn.py": """
        dpca_tasks/accounting/published_agn.py dpca_tasks/mechanisms/parts/tensor_problem.py
        dpca_tasks/mechanisms/parts/tensor_releases.py
    """,
    "dpca_tasks/mechanisms/parts/test_tensor_forecast.py": "dpca_tasks/mechanisms/parts/tensor_noise.py",
    "dpca_tasks/noise/test_distributions.py": "dpca_tasks/noise/wishart.py",
    "dpca_tasks/mechanisms/test_contract.py": "dpca_tasks/mechanisms/base.py dpca_tasks/mechanisms/results.py",
    "dpca_tasks/mechanisms/test_moment_mechanisms.py": """
        dpca_tasks/mechanisms/parts/released_moment.py dpca_tasks/mechanisms/subspace/laplace.py
        dpca_tasks/mechanisms/subspace/mod_sulq.py dpca_tasks/mechanisms/subspace/noisy_power.py
        dpca_tasks/mechanisms/subspace/wishart.py
    """,
    "dpca_tasks/mechanisms/test_sampled_mechanisms.py": """
        dpca_tasks/mechanisms/parts/noisy_products.py dpca_tasks/mechanisms/subspace/dp_spca.py
        dpca_tasks/mechanisms/subspace/dp_vrpca.py dpca_tasks/mechanisms/subspace/local_gaussian.py
        dpca_tasks/privacy/sampled_loop.py dpca_tasks/privacy/ways/sample.py
    """,
    "dpca_tasks/mechanisms/test_perturbing_mechanisms.py": """
        dpca_tasks/mechanisms/parts/computed_directions.py dpca_tasks/mechanisms/subspace/propose_test_release.py
        dpca_tasks/mechanisms/subspace/smooth_sensitivity.py
    """,
    "dpca_tasks/mechanisms/parts/test_refinement.py": """
        dpca_tasks/mechanisms/parts/noise_edge.py dpca_tasks/mechanisms/parts/noisy_moment.py
        dpca_tasks/mechanisms/parts/spectral_shrinkage.py
    """,
    "dpca_tasks/mechanisms/subspace/test_analyze_gauss.py": "dpca_tasks/mechanisms/parts/matrix_free.py",
    "dpca_tasks/mechanisms/parts/test_expected_overlaps.py": "dpca_tasks/mechanisms/parts/expected_iterations.py",
    "dpca_tasks/sites/secure_sum/test_attempt.py": """
        dpca_tasks/sites/secure_sum/context.py dpca_tasks/sites/secure_sum/double_masks.py
        dpca_tasks/sites/secure_sum/masked_sums.py dpca_tasks/sites/secure_sum/shares.py
    """,
    "dpca_tasks/sites/secure_sum/test_machine.py": """
        dpca_tasks/sites/secure_sum/agreements.py dpca_tasks/sites/secure_sum/keys.py
        dpca_tasks/sites/secure_sum/opening.py dpca_tasks/sites/secure_sum/roster.py
        dpca_tasks/sites/secure_sum/session.py
    """,
    "dpca_tasks/mechanisms/sites/test_cape_agn.py": "dpca_tasks/mechanisms/sites/noised_tensors.py",
    "dpca_tasks/mechanisms/sites/test_shared_noise.py": """
        dpca_tasks/mechanisms/sites/cape_pca.py dpca_tasks/mechanisms/sites/dps_pca.py
        dpca_tasks/mechanisms/sites/parties.py
    """,
    "dpca_tasks/mechanisms/subspace/test_dps_pca.py": "dpca_tasks/mechanisms/parts/truncated_rounds.py",
    "dpca_tasks/mechanisms/sites/test_noised_moments.py": "dpca_tasks/mechanisms/sites/joint_plan.py",
    # the command
    "flows/test_cli_contract.py": """
        dpca_tasks/errors.py flows/cli.py flows/commands/releasing.py flows/commands/subspace.py
    """,
    "flows/test_transform_names.py": "flows/commands/scoring.py",
    "flows/commands/test_schema.py": """
        storage/formats/table_heads.py storage/formats/violations.py storage/schemas/draft.py
    """,
    "storage/schemas/test_encoder.py": """
        storage/schemas/cells.py storage/schemas/kinds.py
    """,
    "storage/schemas/test_schema.py": "storage/schemas/plain_yaml.py",
    "flows/test_demo.py": "flows/commands/demo.py",
    "flows/test_doctor.py": """
        flows/commands/doctor.py flows/orchestration/left_servers.py flows/reports/findings.py
        flows/reports/proof_findings.py flows/settings.py
    """,
    "flows/test_ingest_options.py": "flows/commands/dataset.py",
    "flows/commands/test_mechanism.py": "flows/reports/truth_facts.py",
    "flows/commands/test_advising.py": "flows/reports/advice_facts.py",
    # papers
    "papers/test_main.py": "papers/__main__.py papers/lib/experiments.py",
    "papers/test_board.py": "papers/lib/children.py papers/lib/covariances.py",
    "papers/test_shang.py": "papers/lib/figures.py papers/lib/subspaces.py",
    "papers/test_dps_pca.py": "papers/lib/sparse_model.py",
    "papers/test_cape_pca.py": "papers/lib/sites.py",
    "papers/test_cape_agn.py": "papers/lib/tensors.py",
    "papers/test_dpals.py": "papers/lib/ratings.py",
    # flows
    "flows/families/test_toy.py": """
        dpca_tasks/noise/joint.py dpca_tasks/privacy/ways/release_parts.py dpca_tasks/queries/joint_sum.py
        flows/families/base.py flows/families/table.py
    """,
    "flows/releases/test_planning.py": "flows/families/stored.py flows/families/subspace.py",
    "flows/test_refresh.py": "flows/releases/paced.py flows/releases/arrival_ends.py",
    "flows/releases/test_notices.py": "flows/orchestration/prefect_events.py storage/backends/claims.py",
    "flows/test_cluster.py": """
        flows/clusters/certificates.py flows/clusters/connecting.py flows/clusters/temporary_certificates.py
    """,
    "flows/test_launchers.py": "flows/clusters/launchers.py",
    "flows/test_strangers.py": "flows/orchestration/own_server.py flows/orchestration/server_process.py",
    "flows/orchestration/test_deployment_notes.py": "flows/releases/verdicts.py",
    "flows/test_options.py": "flows/requests/base.py flows/requests/subspace.py",
    "flows/test_warnings.py": "flows/orchestration/prefect_artifacts.py",
    "flows/test_fit.py": """
        flows/releases/preview.py flows/releases/publish.py flows/releases/running.py flows/releases/stages.py
        flows/reports/budget_facts.py
    """,
    "flows/test_evaluate.py": """
        flows/families/evaluated_columns.py flows/families/evaluated_subspace.py flows/families/evaluation.py
        flows/families/subspace_evaluation.py flows/requests/evaluation.py
    """,
    "flows/test_stream.py": """
        flows/commands/stream.py flows/families/stream_terms.py
        flows/releases/stream_acts.py flows/releases/stream_stages.py flows/requests/stream.py
    """,
    "flows/test_complete.py": """
        flows/commands/completion.py flows/families/completion.py flows/families/completion_advice.py
        flows/families/completion_evaluation.py flows/recommend.py flows/requests/completion.py
    """,
    "flows/test_decompose.py": """
        flows/families/tensor_advice.py flows/families/tensors.py flows/requests/tensor.py
    """,
    "flows/test_describe.py": "flows/commands/tensor.py",
    "flows/test_federated_components.py": "flows/families/stated_components.py",
    "flows/sites/test_aggregation.py": """
        flows/federation_demo.py flows/parties/calling.py flows/sites/joint_plans.py flows/sites/remote_parties.py
    """,
    "flows/sites/test_secure_sums.py": "flows/sites/memory.py",
    "flows/sites/test_site_service.py": """
        flows/parties/certificates.py flows/sites/site_releases.py
    """,
    "flows/parties/test_listening.py": "flows/parties/refusals.py",
    "flows/remote_ledger/test_service.py": """
        flows/remote_ledger/checks.py flows/remote_ledger/messages.py storage/ledger/run_keys.py
    """,
    "flows/remote_ledger/test_client.py": "flows/remote_ledger/facts.py storage/ledger/protocol.py",
    "flows/remote_ledger/test_workspaces.py": "flows/commands/ledger.py flows/remote_ledger/findings.py",
    "flows/sites/test_roster_file.py": "flows/parties/config_files.py",
    "flows/sites/test_site_config.py": "flows/commands/one_site.py flows/sites/site_status.py",
    "flows/test_federate.py": """
        flows/commands/sites.py flows/releases/site_plans.py flows/releases/site_stages.py
        flows/releases/site_statements.py flows/requests/sites.py flows/sites/previews.py
    """,
    "flows/web/test_pages.py": """
        flows/web/absent.py flows/web/datasets.py flows/web/kinds.py flows/web/rendering.py
        flows/web/versions.py
    """,
    "flows/web/test_serving.py": "flows/commands/serve.py",
    # artifacts, registry
    "storage/artifacts/test_subspace.py": """
        storage/artifacts/base.py storage/artifacts/kinds.py storage/artifacts/rows.py
    """,
    "storage/test_untrusted_artifacts.py": "storage/artifacts/manifest.py",
    "storage/registry/test_reader.py": "storage/registry/pointers.py storage/registry/references.py",
    "storage/registry/test_restored.py": "storage/registry/agreement.py",
    "storage/test_workspace.py": "storage/opened_home.py",
    "storage/registry/test_joint_versions.py": "storage/registry/owners.py",
    "storage/registry/test_signing.py": "storage/registry/root_keys.py",
    "storage/registry/test_trust.py": "storage/registry/signed_files.py storage/registry/signed_pointers.py",
    # backends, database
    "storage/backends/test_local.py": "storage/backends/base.py storage/backends/opening.py",
    "storage/artifacts/test_mlflow_model.py": "storage/artifacts/dpca_subspace.py",
    "storage/backends/test_web.py": "storage/artifacts/unlisted.py storage/backends/side_by_side.py",
    "storage/backends/test_atomic_files.py": "storage/backends/digests.py",
    "crash/test_crashes.py": "storage/backends/crash_points.py",
    "storage/database/test_engine.py": """
        storage/database/tables.py
        storage/database/migrations/env.py
        storage/database/migrations/versions/v0001_ledger.py
        storage/database/migrations/versions/v0002_order.py
        storage/database/migrations/versions/v0003_pointers.py
        storage/database/migrations/versions/v0004_joint_versions.py
        storage/database/migrations/versions/v0005_arrivals.py
        storage/database/migrations/versions/v0006_streams.py
        storage/database/migrations/versions/v0007_signed_pointers.py
        storage/database/migrations/versions/v0008_long_histories.py
    """,
    # datasets, formats
    "storage/datasets/test_snapshot_reader.py": """
        storage/datasets/chunk_reader.py storage/datasets/chunk_writer.py storage/datasets/manifest.py
        storage/datasets/snapshot_writer.py
    """,
    "storage/datasets/test_ingest.py": """
        storage/datasets/ingest_options.py storage/datasets/open_source.py storage/datasets/publish_snapshot.py
    """,
    "storage/test_schema.py": """
        storage/datasets/privacy_units.py storage/datasets/whole_records.py
        storage/formats/declared.py storage/formats/groups.py
    """,
    "flows/test_ingest.py": "storage/datasets/kept_sources.py",
    "storage/test_every_format.py": """
        storage/formats/delimited.py storage/formats/dense.py storage/formats/hdf5.py
        storage/formats/mtx.py storage/formats/npy.py storage/formats/npz.py storage/formats/parquet.py
        storage/formats/tables.py
    """,
    "flows/estimators/test_releasing.py": "flows/estimators/fits.py",
    "storage/formats/test_files.py": "storage/formats/held_files.py",
    "storage/formats/test_sources.py": """
        storage/formats/batch.py storage/formats/csr.py storage/formats/duplicates.py storage/formats/text.py
    """,
    "storage/test_broken_sources.py": "storage/formats/broken.py",
    "storage/datasets/test_unattended.py": "storage/formats/split_lines.py",
    "flows/test_erase.py": "storage/datasets/erase.py storage/datasets/owner_key.py",
    "storage/formats/test_svmlight.py": """
        storage/formats/decimals.py storage/formats/eight_digits.py storage/formats/svmlight_parser.py
    """,
    # home, ledger
    "storage/backends/test_private.py": "storage/home.py",
    "storage/ledger/test_journal_check.py": "storage/database/raw_rows.py",
    "storage/ledger/test_ledger.py": """
        storage/errors.py storage/ledger/balance.py storage/ledger/notes.py storage/ledger/refusals.py
    """,
    "storage/ledger/test_orphans.py": "storage/ledger/release_files.py",
    "storage/ledger/test_step_answers.py": "storage/ledger/reservation.py",
    "storage/ledger/test_streams.py": """
        storage/ledger/stream_check.py storage/ledger/stream_rows.py storage/ledger/stream_ticks.py
    """,
    "storage/backups/test_creating.py": "storage/backups/contents.py storage/backups/kept_dates.py",
    "storage/backups/test_restoring.py": "storage/backups/rows.py storage/backups/stored_files.py",
    "storage/trail/test_verification.py": """
        storage/ledger/trail_export.py storage/trail/checkpoints.py storage/trail/entries.py
    """,
}
"""Test files by their place in ``tests/``, each with the source files that it alone is named for."""


def sources() -> set[str]:
    """Find the source files: all but the files that only say what a package is."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")
    return {path.relative_to(ROOT).as_posix() for path in found}


def own_test(source: str) -> Path:
    """Name the test file that belongs to a source file."""
    path = Path(source)
    return ROOT / "tests" / path.parent / f"test_{path.name}"
