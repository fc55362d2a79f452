"""Service of a remote ledger, with its configuration.

The configuration is a file of the operator::

    listen: "0.0.0.0:8790"
    key: ledger.key                   # the certificate is ledger.pem in the same folder
    clients:
      - {name: runner, certificate: runner.pem, role: runner, populations: [patients]}
      - {name: board, certificate: board.pem, role: reader, populations: [patients]}

Paths are relative to the folder of the file. A client with the role ``runner`` may spend budget; a ``reader`` may only
see budgets. A client sees only the populations that the configuration lists for it. Releases of other populations are
reported as missing.

Every operation can be repeated safely. A reservation is identified by its run key, and every later operation by its
release id. Opening budgets, ingesting data, promoting versions and giving up releases are possible only on the machine
of the ledger.
"""

import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dpca.errors import Invalid, NotFound, Refused
from dpca_tasks.accounting.events import count_steps
from dpca_tasks.errors import InvalidInput
from flows.parties.certificates import fingerprint_of, key_of, listening_context, read_certificate, read_yaml
from flows.parties.listening import Callers, address_of, bind, read_body, serve
from flows.remote_ledger import messages
from flows.remote_ledger.checks import (
    check_artifact,
    check_bounds,
    check_family,
    check_price,
    check_release,
    check_spent,
)
from flows.remote_ledger.pricing import Pricing
from flows.reports.terminal import configure_logs, log_event
from flows.settings import cluster_settings
from storage.datasets.catalog import Entry
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.releases import Grant, Release, separate_key
from storage.workspace import Workspace

type Role = Literal["runner", "reader"]
RUNNER: Role = "runner"
READER: Role = "reader"
_CLIENT = "dpca.client"
"""Key of the ASGI scope under which a request has the calling client."""


def _read_nearby(shown: object, info: ValidationInfo) -> object:
    return shown if info.context is None else read_certificate(info.context / str(shown))


def _place_nearby(key: Path, info: ValidationInfo) -> Path:
    return key if info.context is None else info.context / key


class Client(BaseModel):
    """A client of the ledger, and the populations whose budgets it may use."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[messages.Name, StringConstraints(pattern=r"\S")]
    certificate: Annotated[
        str, BeforeValidator(_read_nearby), Field(repr=False)
    ]  # PEM text, read from the path in the configuration file
    role: Role
    populations: Annotated[frozenset[str], Field(strict=False)]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the certificate."""
        return fingerprint_of(self.certificate)


async def _client_of(request: Request) -> Client:
    return request.scope[_CLIENT]  # type: ignore[no-any-return]


type Caller = Annotated[Client, Depends(_client_of)]
"""The calling client, as a parameter of an endpoint."""


class LedgerConfig(BaseModel):
    """The configuration of the service."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    listen: str
    key: Annotated[Path, Field(strict=False), AfterValidator(_place_nearby)]
    clients: Annotated[tuple[Client, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _check_different(self) -> Self:
        for what, found in {
            "name": [client.name for client in self.clients],
            "key": [key_of(client.certificate).hex() for client in self.clients],
        }.items():
            if len(set(found)) < len(found):
                raise ValueError(f"two clients have the same {what}")
        return self

    @property
    def certificate(self) -> Path:
        """Path of the service's certificate, next to its key."""
        return self.key.with_suffix(".pem")


def read_config(path: Path | str) -> LedgerConfig:
    """Read and check the configuration.

    Raises
    ------
    InvalidInput
        When the configuration is invalid, or two clients have the same name or key.
    """
    path = Path(path)
    try:
        return LedgerConfig.model_validate(read_yaml(path, what="the configuration"), context=path.parent)
    except ValidationError as error:
        raise InvalidInput(messages.fault_of(error, f"{path}")) from None


def serve_ledger(config: LedgerConfig, *, ready: Callable[[str], None]) -> None:
    """Serve the ledger of this process's settings until the process is terminated.

    Operations that a crash interrupted are finished first.

    Parameters
    ----------
    config : LedgerConfig
    ready : callable
        Called with ``host:port`` once the service listens.
    """
    configure_logs(cluster_settings().log)
    workspace = Workspace.open()
    service = LedgerService(workspace, config.clients)
    context = listening_context(
        certificate=config.certificate, key=config.key, peers=[client.certificate for client in config.clients]
    )
    at = bind(config.listen)
    service.pricing.start()
    ready(address_of(at))
    log_event("listening", ledger=workspace.ledger.id)
    names = {each.fingerprint: each.name for each in config.clients}
    serve(service.application(names), names=names, context=context, at=at)


class LedgerService:
    """Request handlers of one ledger.

    Parameters
    ----------
    workspace : Workspace
    clients : iterable of Client
    """

    def __init__(self, workspace: Workspace, clients: tuple[Client, ...]) -> None:
        self._workspace, self._ledger = workspace, workspace.ledger
        self._clients = {client.name: client for client in clients}
        self.pricing = Pricing()

    def application(self, names: Mapping[str, str]) -> FastAPI:
        """Return the application of the service; ``names`` are the names of the clients by fingerprint."""
        callers, app = Callers(names), FastAPI(openapi_url=None)
        runners = {client.name for client in self._clients.values() if client.role == RUNNER}
        shown = (self._identify, self._budget, self._statement, self._history, self._release)
        spent = (
            *(self._quote, self._find, self._current, self._snapshot, self._alerts, self._reserve, self._begin),
            *(self._key, self._step, self._keep, self._publish, self._withhold),
        )
        for allowed, acts in ((self._clients, shown), (runners, spent)):
            app.router.route_class = self._route_class(callers, allowed)
            for act in acts:
                endpoint = _endpoint(act, callers)
                app.add_api_route(f"/v1/{act.__name__[1:]}", endpoint, methods=["POST"], response_model=None)
        return app

    def _route_class(self, callers: Callers, allowed: Collection[str]) -> type[APIRoute]:
        """Return a route class that admits the ``allowed`` clients and limits the size of requests."""
        clients = self._clients

        class Limited(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                validated = super().get_route_handler()

                async def handle(request: Request) -> Response:
                    async def act(caller: str) -> Response:
                        body = await read_body(request, most=messages.LONGEST_MESSAGE)

                        async def whole() -> dict[str, Any]:
                            return {"type": "http.request", "body": body, "more_body": False}

                        try:
                            return await validated(Request({**request.scope, _CLIENT: clients[caller]}, whole))
                        except RequestValidationError as error:
                            raise Invalid(messages.fault_of(error, "this message")) from None
                        except HTTPException:
                            raise Invalid("this message is not JSON; use one version of dpca on both sides.") from None

                    return await callers.answer(request, act, route=self.path, allowed=allowed, refusal=JSONResponse)

                return handle

        return Limited

    def _identify(self, client: Caller, requested: messages.Message) -> messages.Identity:
        return messages.Identity(
            ledger=self._ledger.id,
            protocol=messages.PROTOCOL,
            version=version("dpca-pipeline"),
            time=time.time(),
            role=client.role,
            populations=sorted(client.populations),
        )

    def _budget(self, client: Caller, requested: messages.OfPopulation) -> Budget:
        return self._ledger.budget(_own(client, requested.population))

    def _statement(self, client: Caller, requested: messages.OfStatement) -> Statement:
        population = _own(client, requested.population)
        return self._ledger.statement(population, newest=requested.newest, burn_down=requested.burn_down)

    def _history(self, client: Caller, requested: messages.OfHistory) -> list[dict[str, Any]]:
        return self._ledger.history(_own(client, requested.population), newest=requested.newest)

    def _release(self, client: Caller, requested: messages.OfRelease) -> Release:
        return self._row(client, requested.release)

    def _quote(self, client: Caller, requested: messages.Priced) -> messages.Quoted:
        budget = self._ledger.budget(_own(client, requested.population))

        def quote() -> Quote:
            check_price(budget, requested)
            return self._ledger.quote(
                requested.population, requested.event, epsilon=requested.epsilon, delta=requested.delta
            )

        quoted = self.pricing.priced(quote, client=client.name, budget=budget, requested=requested)
        refusal = None if quoted.refusal is None else str(quoted.refusal)
        return messages.Quoted(spent=quoted.spent, total=quoted.total, refusal=refusal)

    def _find(self, client: Caller, requested: messages.OfRunKey) -> Release | None:
        among = client.populations if requested.population is None else {_own(client, requested.population)}
        found = (self._ledger.find(requested.run_key, population=population) for population in sorted(among))
        return next(filter(None, found), None)

    def _current(self, client: Caller, requested: messages.OfDataset) -> Entry:
        entry = self._workspace.catalog.current(requested.dataset)
        if entry.population not in client.populations:
            raise NotFound(f"dataset {requested.dataset!r} does not exist; see `dpca dataset list`, or ingest it")
        return entry

    def _snapshot(self, client: Caller, requested: messages.OfSnapshot) -> Entry:
        entry = self._workspace.catalog.entry(requested.snapshot)
        if entry.population not in client.populations:
            raise NotFound(f"snapshot {requested.snapshot} is no longer in the catalog; ingest the data again")
        return entry

    def _alerts(self, client: Caller, requested: messages.OfRelease) -> tuple[int, ...]:
        return self._ledger.alerts(self._row(client, requested.release).id)

    def _reserve(self, client: Caller, requested: messages.Requested) -> Grant:
        budget = self._ledger.budget(_own(client, requested.population))
        check_bounds(requested, replaced=budget.relation == "replace_one")

        def reserve() -> Grant:
            standing = self._ledger.find(requested.run_key, population=requested.population)
            if standing is None:
                plan = check_release(self._workspace.catalog, budget, requested)
                check_spent(plan, requested, check_price(budget, requested))
            return self._ledger.reserve(
                requested.population,
                run_key=separate_key(requested.population, requested.run_key) if standing is None else standing.run_key,
                fingerprint=requested.fingerprint,
                event=requested.event,
                epsilon=requested.epsilon,
                delta=requested.delta,
                snapshot_id=requested.snapshot,
                request=requested.request,
            )

        grant = self.pricing.priced(reserve, client=client.name, budget=budget, requested=requested)
        log_event("reserved", release=grant.release_id, population=requested.population, client=client.name)
        return grant

    def _begin(self, client: Caller, requested: messages.OfRelease) -> messages.Begun:
        begun = self._ledger.begin(self._acting(client, requested.release).id)
        return messages.Begun(event=dict(begun.event), relation=begun.relation, content=begun.content)

    def _key(self, client: Caller, requested: messages.OfRelease) -> str:
        return self._ledger.key(self._acting(client, requested.release).id).hex()

    def _step(self, client: Caller, requested: messages.Step) -> str | None:
        return self._ledger.steps(self._planned(client, requested).id).find(requested.step)

    def _keep(self, client: Caller, requested: messages.Answered) -> str:
        return self._ledger.steps(self._planned(client, requested).id).settle(requested.step, requested.digest)

    def _publish(self, client: Caller, requested: messages.Published) -> int:
        release = self._acting(client, requested.release)
        self._check_artifact(release, requested.artifact)
        if requested.made is not None and requested.made != requested.artifact:
            self._check_artifact(release, requested.made, parent=requested.artifact)
        return self._workspace.publish(
            release.id,
            name=requested.name,
            artifact_digest=requested.artifact,
            made=requested.made,
            among=client.populations,
        )

    def _withhold(self, client: Caller, requested: messages.Made) -> None:
        release = self._acting(client, requested.release)
        self._check_artifact(release, requested.artifact)
        self._workspace.withhold(release.id, artifact_digest=requested.artifact)

    def _check_artifact(self, release: Release, digest: str, *, parent: str | None = None) -> None:
        budget = self._ledger.budget(release.population)
        check_artifact(self._workspace.store, release, digest, budget=budget, parent=parent)

    def _row(self, client: Client, release_id: str) -> Release:
        """Return a release of one of the client's populations; any other release is reported as missing."""
        release = self._ledger.release(release_id)
        if release.population not in client.populations:
            raise NotFound(f"release {release_id!r} is not in this ledger; see `dpca budget show`.")
        return release

    def _acting(self, client: Client, release_id: str) -> Release:
        """Return a release of one of the client's populations, after `check_family` on its request."""
        release = self._row(client, release_id)
        check_family(release.request)
        return release

    def _planned(self, client: Client, requested: messages.Step) -> Release:
        """Return a release that reserved the requested step."""
        release = self._acting(client, requested.release)
        if requested.step >= count_steps(release.event):
            raise Refused(
                f"release {release.id} has no step {requested.step}; request one of the steps that it reserved."
            )
        return release


def _own(client: Client, population: str) -> str:
    if population not in client.populations:
        raise Refused(f"this client has no access to population {population!r}; contact the ledger's operator.")
    return population


def _endpoint(act: Callable[..., object], callers: Callers) -> Callable[..., Coroutine[Any, Any, Response]]:
    """Return an endpoint that calls a function in a thread, and encodes the result as its response."""

    @wraps(act)
    async def answer(**given: object) -> Response:
        value = await run_sync(partial(act, **given), limiter=callers.threads)
        return Response(messages.answered(value), media_type=messages.JSON)

    return answer
