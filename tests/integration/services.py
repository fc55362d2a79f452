"""Services of the pipeline: PostgreSQL, an S3 store, Prefect with its worker, and a Dask cluster under TLS.

Schedules of a Prefect deployment are activated, and the start and the end of a run are awaited.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import sqlalchemy as sa
from httpx import HTTPError
from obstore.store import S3Store
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import Artifact, FlowRun, StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import AwaitingRetry

from flows.clusters.dask_clusters import WORKER_ENVIRONMENT
from tests.integration import BUCKET, S3_ACCOUNTS
from tests.integration.processes import BIN, MARK, ROOT, Processes, Service, answers, check, free_port, wait_until
from tests.postgres import Server, find_programs, running_server
from tests.tools import python
from tests.web_server import Files

POOL = "dpca"
STORE = f"s3://{BUCKET}"
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
}


class Stack:
    """All running services with their addresses and credentials; every account has a separate password or key."""

    def __init__(self, processes: Processes, postgres: Server) -> None:
        self.processes, self.postgres = processes, postgres
        self.root = processes.root
        self.passwords = {name: secrets.token_urlsafe(24) for name in ("dpca", "dpca_curator", "prefect")}
        self.keys = {
            name: (f"AKIA{secrets.token_hex(8).upper()}", secrets.token_hex(20))
            for name in ("curator", "worker", "consumer")
        }
        self.certificates = self._make_certificates()
        self.s3_port, self.prefect_port, self.dask_port = free_port(), free_port(), free_port()
        self._create_roles()
        self.s3 = self._start_s3()
        self.prefect = self._start_prefect()
        self.scheduler = self._start_scheduler()
        self.dask_workers = [self._start_dask_worker(number) for number in (1, 2)]
        self._cli("work-pool", "create", POOL, "--type", "process")
        self._cli("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        self.worker = self._start_worker()

    def database_url(self, role: str, database: str, *, driver: str = "psycopg", password: str | None = None) -> str:
        """Return the database URL of a role."""
        shown = quote(self.passwords[role] if password is None else password)
        return f"postgresql+{driver}://{role}:{shown}@127.0.0.1:{self.postgres.port}/{database}"

    def store_access(self, account: str) -> dict[str, str]:
        """Return the variables by which an account accesses the object store."""
        key_id, secret = self.keys[account]
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.s3_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key_id,
            "AWS_SECRET_ACCESS_KEY": secret,
        }

    def store(self, account: str, *, secret: str | None = None) -> S3Store:
        """Return a client of the bucket with an account's key."""
        key_id, known = self.keys[account]
        return S3Store(
            BUCKET, endpoint=f"http://127.0.0.1:{self.s3_port}", region="us-east-1", access_key_id=key_id,
            secret_access_key=secret or known, client_options={"allow_http": True}, retry_config={"max_retries": 0},
        )  # fmt: skip

    @property
    def dask_address(self) -> str:
        """The address of the scheduler."""
        return f"tls://127.0.0.1:{self.dask_port}"

    @property
    def prefect_access(self) -> dict[str, str]:
        """Return the variables by which Prefect's server is accessed."""
        return {
            **_QUIET,
            "PREFECT_HOME": str(self.root / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.prefect_port}/api",
        }

    @property
    def curator(self) -> dict[str, str]:
        """Return the environment variables of the curator, the only ones that a Prefect worker receives."""
        return {
            **self.prefect_access,
            **self.store_access("curator"),
            **self.certificates.settings,
            "DPCA_HOME": str(self.root / "home"),
            "DPCA_STATE_FOLDER": str(self.root / "state"),
            "DPCA_DATABASE_URL": self.database_url("dpca_curator", "dpca"),
            "DPCA_STORE_URL": STORE,
            "DPCA_CLUSTER": self.dask_address,
        }

    @property
    def consumer(self) -> dict[str, str]:
        """Return the environment variables of a consumer: no database, and a key that can only read the registry."""
        return {**self.store_access("consumer"), "DPCA_STORE_URL": STORE, "DPCA_HOME": str(self.root / "nobody")}

    def client(self) -> SyncPrefectClient:
        """Return a client of Prefect's server, as a context manager."""
        return SyncPrefectClient(api=f"http://127.0.0.1:{self.prefect_port}/api")

    def query(self, statement: str, **values: object) -> list[sa.Row[tuple[object, ...]]]:
        """Query the ledger's database without the program's code."""
        engine = sa.create_engine(self.database_url("dpca_curator", "dpca"), poolclass=sa.NullPool)
        with engine.connect() as connection:
            return list(connection.execute(sa.text(statement), values))

    def dpca(self, *words: str | Path | float) -> str:
        """Run the ``dpca`` command as the curator."""
        return self.processes.expect(BIN / "dpca", *map(str, words), environment=self.curator)

    def _cli(self, *words: str) -> None:
        self.processes.expect(BIN / "prefect", "--no-prompt", *words, environment=self.prefect_access)

    def _make_certificates(self) -> Files:
        """Create the cluster's certificates by the shipped script."""
        folder = self.root / "tls"
        self.processes.expect(ROOT / "deployments" / "certificates.sh", folder, environment={})
        return Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")

    def _create_roles(self) -> None:
        """Create both databases and their accounts by the shipped SQL file, then require passwords."""
        programs = find_programs()
        check(programs, "PostgreSQL's programs are not installed")
        assert programs is not None
        ours = {
            "DPCA_DATABASE_PASSWORD": self.passwords["dpca_curator"],
            "PREFECT_DATABASE_PASSWORD": self.passwords["prefect"],
        }
        roles = ROOT / "deployments" / "postgres" / "roles.sql"
        reached = ("-h", "127.0.0.1", "-p", str(self.postgres.port), "-U", "dpca", "-d", "postgres")
        self.processes.expect(programs / "psql", "--no-psqlrc", *reached, "-f", roles, environment=ours)
        engine = sa.create_engine(f"{self.postgres.url}/postgres", poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER ROLE dpca PASSWORD '{self.passwords['dpca']}'")
            rules = Path(connection.exec_driver_sql("SHOW hba_file").scalar_one())
            rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
            connection.exec_driver_sql("SELECT pg_reload_conf()")

    def _start_s3(self) -> Service:
        command = (python(), "-m", "tests.integration.s3_server", str(self.s3_port), self.root / "s3.journal")
        keys = {S3_ACCOUNTS: json.dumps(self.keys)}
        return self.processes.service("s3", *command, environment=keys, ready=lambda _: answers(self.s3_port))

    def _start_prefect(self) -> Service:
        environment = {
            **_QUIET,
            "PREFECT_HOME": str(self.root / "prefect-server"),
            "PREFECT_API_DATABASE_CONNECTION_URL": self.database_url("prefect", "prefect", driver="asyncpg"),
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        }
        command = (
            BIN / "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.prefect_port),
            "--no-ui",
        )
        return self.processes.service(
            "prefect", *command, environment=environment, ready=lambda _: answers(self.prefect_port)
        )

    def _start_worker(self) -> Service:
        command = (BIN / "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "curator")
        return self.processes.service(
            "worker", *command, environment=self.curator, ready=lambda printed: "started!" in printed
        )

    def _start_scheduler(self) -> Service:
        command = (BIN / "dask", "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", str(self.dask_port))
        return self.processes.service(
            "scheduler", *command, "--no-dashboard", *self.certificates.options, environment=self._dask(),
            ready=lambda _: answers(self.dask_port),
        )  # fmt: skip

    def _start_dask_worker(self, number: int) -> Service:
        scratch = self.root / f"scratch-{number}"
        command = (BIN / "dask", "worker", self.dask_address, "--protocol", "tls", "--host", "127.0.0.1")
        options: tuple[str | Path, ...] = (
            "--nthreads",
            "1",
            "--no-dashboard",
            "--local-directory",
            scratch,
            *self.certificates.options,
        )
        name = f"dask-worker-{number}"
        return self.processes.service(
            name, *command, *options, environment=self._dask() | self.store_access("worker"),
            ready=lambda printed: "Registered to" in printed,
        )  # fmt: skip

    def _dask(self) -> dict[str, str]:
        return {**WORKER_ENVIRONMENT, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True", "OMP_NUM_THREADS": "1"}


@contextmanager
def running_stack(root: Path) -> Iterator[Stack]:
    """Start all services from scratch, and stop them at the end, also after an error."""
    processes = Processes(root)
    os.environ[MARK] = processes.mark  # the PostgreSQL server inherits the variable that marks processes of this run
    with running_server() as postgres:
        try:
            yield Stack(processes, postgres)
        finally:
            processes.stop()


# interval so long that only one run starts before the schedule is deleted, even on a slow machine
EVERY = timedelta(seconds=90)
SOON = timedelta(seconds=6)  # the first run is after the next loop of Prefect's scheduler


class Job:
    """A Prefect deployment, and the parameters that its schedule passes."""

    def __init__(self, stack: Stack, deployment: str, parameters: Mapping[str, Any]) -> None:
        self._stack, self._parameters = stack, dict(parameters)
        with stack.client() as client:
            found = client.read_deployment_by_name(deployment)
        check(found.schedules, f"{deployment} is shipped without a schedule")
        check(
            not any(shipped.active for shipped in found.schedules), f"{deployment} is shipped with an active schedule"
        )
        self._deployment = found.id
        self._seen = {run.id for run in self._started()}

    def fire(self) -> UUID:
        """Activate a schedule until one run of the deployment has started; return the run."""
        schedule = IntervalSchedule(interval=EVERY, anchor_date=datetime.now(UTC) + SOON, timezone="UTC")
        requested = DeploymentScheduleCreate(schedule=schedule, active=True, parameters=self._parameters, slug="often")
        with self._stack.client() as client:
            (made,) = client.create_deployment_schedules(self._deployment, [requested])
        run = wait_until("a scheduled run starts", self._next)
        with self._stack.client() as client:
            client.delete_deployment_schedule(self._deployment, made.id)
        self._seen.add(run.id)
        check(run.auto_scheduled, "a run was not made by the schedule")
        return run.id

    def ending(self, run: UUID) -> FlowRun:
        """Wait until a run has ended; return the run."""

        def ended() -> FlowRun | None:
            # the database of Prefect's server may be restarting
            with suppress(HTTPError), self._stack.client() as client:
                found = client.read_flow_run(run)
                return found if found.state is not None and found.state.is_final() else None
            return None

        return wait_until("a scheduled run ends", ended)

    def artifacts(self, run: UUID) -> dict[str, Artifact]:
        """Return the Prefect artifacts that a run created, by key."""
        with self._stack.client() as client:
            wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
            return {str(artifact.key): artifact for artifact in client.read_artifacts(artifact_filter=wanted)}

    def retry(self, run: UUID) -> None:
        """Retry a run whose process no longer exists, as an operator would."""
        with self._stack.client() as client:
            client.set_flow_run_state(run, AwaitingRetry(scheduled_time=datetime.now(UTC)), force=True)

    def _next(self) -> FlowRun | None:
        return next((run for run in self._started() if run.id not in self._seen), None)

    def _started(self) -> list[FlowRun]:
        early = FlowRunFilterStateType(not_any_=[StateType.SCHEDULED, StateType.PENDING])
        with self._stack.client() as client:
            return client.read_flow_runs(
                deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[self._deployment])),
                flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=early)),
            )
