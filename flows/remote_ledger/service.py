"""The service of a remote ledger: what those who release may ask of it, and nothing else.

=========  ======  ==================================  ==============================================================
Route      Role    In                                  Out
=========  ======  ==================================  ==============================================================
identify   any     nothing                             ledger, versions and clock; the caller's role and populations
budget     any     a population                        its terms
statement  any     a population, how many              what was allowed, spent and left, with the newest releases
history    any     a population, how many              what was left after each of the newest releases
release    any     a release                           its row
quote      runner  a population, event, guarantee      what a charge would come to
find       runner  a run key, a population if known    the release of it, if any
current    runner  a dataset                           its current snapshot
snapshot   runner  a snapshot                          its entry in the catalog
alerts     runner  a release                           the percents left that its charge was the first to reach
reserve    runner  all that a reservation stores       the release's id and state
begin      runner  a release                           its event, relation, and its snapshot's content digest
key        runner  a release that began                its secret key
step       runner  a release, a step                   the digest of the answer that stands, if any
keep       runner  a release, a step, a digest         the digest that stands now
publish    runner  a release, a name, artifacts        the version
withhold   runner  a release, an artifact              nothing
states     runner  some releases                       their states
=========  ======  ==================================  ==============================================================

Every act repeats safely: a reservation is known by its run key, everything later by its release. A client is told of
the populations that the configuration names for it; the releases of others are to it as if they were not there. Budgets
are opened, data ingested, versions promoted and releases given up where the ledger runs.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from dpca_tasks.accounting.events import count_steps
from flows.parties.certificates import listening_context
from flows.parties.frames import Frame
from flows.parties.listening import Route, address_of, bind, serve
from flows.remote_ledger import messages
from flows.remote_ledger.checks import (
    check_artifact,
    check_bounds,
    check_family,
    check_length,
    check_price,
    check_release,
    check_spent,
)
from flows.remote_ledger.config import ROLES, RUNNER, Client, LedgerConfig
from flows.remote_ledger.messages import Message
from flows.remote_ledger.pricing import Pricing
from flows.reports.logs import configure_logs, log_event
from flows.settings import cluster_settings
from storage.errors import Corrupt, NotFound, Refused
from storage.ledger.balance import Quote
from storage.ledger.releases import Grant, Release
from storage.ledger.run_keys import key_apart
from storage.workspace import Workspace

type Act[M: Message] = Callable[[Client, M], Any]

_PACKED = 8 + messages.MOST_ASKED


class LedgerService:
    """The answers of one ledger.

    Parameters
    ----------
    workspace : Workspace
    clients : iterable of Client
    """

    def __init__(self, workspace: Workspace, clients: tuple[Client, ...]) -> None:
        self._workspace, self._ledger = workspace, workspace.ledger
        self._clients = {client.name: client for client in clients}
        self.pricing = Pricing()

    def routes(self) -> list[Route]:
        """Return the routes."""
        told, released = ROLES, (RUNNER,)
        return [
            self._route("identify", told, Message, self._identify),
            self._route("budget", told, messages.OfPopulation, self._budget),
            self._route("statement", told, messages.OfStatement, self._statement),
            self._route("history", told, messages.OfHistory, self._history),
            self._route("release", told, messages.OfRelease, self._release),
            self._route("quote", released, messages.Priced, self._quote),
            self._route("find", released, messages.OfRunKey, self._find),
            self._route("current", released, messages.OfDataset, self._current),
            self._route("snapshot", released, messages.OfSnapshot, self._snapshot),
            self._route("alerts", released, messages.OfRelease, self._alerts),
            self._route("reserve", released, messages.Asked, self._reserve),
            self._route("begin", released, messages.OfRelease, self._begin),
            self._route("key", released, messages.OfRelease, self._key),
            self._route("step", released, messages.Step, self._step),
            self._route("keep", released, messages.Answered, self._keep),
            self._route("publish", released, messages.Published, self._publish),
            self._route("withhold", released, messages.Made, self._withhold),
            self._route("states", released, messages.States, self._states),
        ]

    def _route[M: Message](self, name: str, roles: tuple[str, ...], kind: type[M], act: Act[M]) -> Route:
        callers = frozenset(client.name for client in self._clients.values() if client.role in roles)

        def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
            asked = messages.read(kind, messages.asked(frame))
            return messages.sent(act(self._clients[caller], asked))

        return Route(path=f"/v1/{name}", callers=callers, answer=answer, most=lambda words: _PACKED)

    def _identify(self, client: Client, asked: Message) -> dict[str, Any]:
        known = {"role": client.role, "populations": sorted(client.populations)}
        here = {"time": time.time(), "version": version("dpca-pipeline")}
        return {"ledger": self._ledger.id, "protocol": messages.PROTOCOL, **known, **here}

    def _budget(self, client: Client, asked: messages.OfPopulation) -> dict[str, Any]:
        return asdict(self._ledger.budget(_own(client, asked.population)))

    def _statement(self, client: Client, asked: messages.OfStatement) -> dict[str, Any]:
        population = _own(client, asked.population)
        stated = self._ledger.statement(population, newest=asked.newest, burn_down=asked.burn_down)
        return messages.facts_of_statement(stated)

    def _history(self, client: Client, asked: messages.OfHistory) -> list[dict[str, Any]]:
        return self._ledger.history(_own(client, asked.population), newest=asked.newest)

    def _release(self, client: Client, asked: messages.OfRelease) -> dict[str, Any]:
        return messages.facts_of_release(self._row(client, asked.release))

    def _quote(self, client: Client, asked: messages.Priced) -> dict[str, Any]:
        budget = self._ledger.budget(_own(client, asked.population))

        def quote() -> Quote:
            check_price(budget, asked)
            return self._ledger.quote(asked.population, asked.event, epsilon=asked.epsilon, delta=asked.delta)

        return messages.facts_of_quote(self.pricing.priced(quote, client=client.name, budget=budget, asked=asked))

    def _find(self, client: Client, asked: messages.OfRunKey) -> dict[str, Any] | None:
        among = client.populations if asked.population is None else {_own(client, asked.population)}
        found = (self._ledger.find(asked.run_key, population=population) for population in sorted(among))
        standing = next(filter(None, found), None)
        return None if standing is None else messages.facts_of_release(standing)

    def _current(self, client: Client, asked: messages.OfDataset) -> dict[str, Any]:
        entry = self._workspace.catalog.current(asked.dataset)
        if entry.population not in client.populations:
            raise NotFound(f"no dataset is named {asked.dataset!r}; see the list of datasets or ingest one")
        return messages.facts_of_entry(entry)

    def _snapshot(self, client: Client, asked: messages.OfSnapshot) -> dict[str, Any]:
        entry = self._workspace.catalog.entry(asked.snapshot)
        if entry.population not in client.populations:
            raise NotFound(f"snapshot {asked.snapshot} is not in the catalog any more; ingest the data again")
        return messages.facts_of_entry(entry)

    def _alerts(self, client: Client, asked: messages.OfRelease) -> list[int]:
        return list(self._ledger.alerts(self._row(client, asked.release).id))

    def _reserve(self, client: Client, asked: messages.Asked) -> dict[str, Any]:
        budget = self._ledger.budget(_own(client, asked.population))
        check_length(asked.request)
        check_bounds(asked, replaced=budget.relation == "replace_one")

        def reserve() -> Grant:
            standing = self._ledger.find(asked.run_key, population=asked.population)
            if standing is None:
                check_release(self._workspace.catalog, budget, asked)
                check_spent(asked, check_price(budget, asked))
            return self._ledger.reserve(
                asked.population,
                run_key=key_apart(asked.population, asked.run_key) if standing is None else standing.run_key,
                fingerprint=asked.fingerprint,
                event=asked.event,
                epsilon=asked.epsilon,
                delta=asked.delta,
                snapshot_id=asked.snapshot,
                request=asked.request,
            )

        grant = self.pricing.priced(reserve, client=client.name, budget=budget, asked=asked)
        log_event("reserved", release=grant.release_id, population=asked.population, client=client.name)
        return asdict(grant)

    def _begin(self, client: Client, asked: messages.OfRelease) -> dict[str, Any]:
        begun = self._ledger.begin(self._acting(client, asked.release).id)
        return {"event": begun.event, "relation": begun.relation, "content": begun.content}

    def _key(self, client: Client, asked: messages.OfRelease) -> str:
        return self._ledger.key(self._acting(client, asked.release).id).hex()

    def _step(self, client: Client, asked: messages.Step) -> str | None:
        return self._ledger.steps(self._planned(client, asked).id).find(asked.step)

    def _keep(self, client: Client, asked: messages.Answered) -> str:
        return self._ledger.steps(self._planned(client, asked).id).settle(asked.step, asked.digest)

    def _publish(self, client: Client, asked: messages.Published) -> int:
        release = self._acting(client, asked.release)
        self._check_artifact(release, asked.artifact)
        if asked.made is not None and asked.made != asked.artifact:
            self._check_artifact(release, asked.made, parent=asked.artifact)
        return self._workspace.publish(
            release.id,
            name=asked.name,
            artifact_digest=asked.artifact,
            made=asked.made,
            among=client.populations,
        )

    def _withhold(self, client: Client, asked: messages.Made) -> None:
        release = self._acting(client, asked.release)
        self._check_artifact(release, asked.artifact)
        self._workspace.withhold(release.id, artifact_digest=asked.artifact)

    def _states(self, client: Client, asked: messages.States) -> dict[str, str]:
        found = {}
        for name in asked.releases:
            try:
                found[name] = self._row(client, name).state
            except (NotFound, Corrupt):
                continue
        return found

    def _check_artifact(self, release: Release, digest: str, *, parent: str | None = None) -> None:
        budget = self._ledger.budget(release.population)
        check_artifact(self._workspace.store, release, digest, budget=budget, parent=parent)

    def _row(self, client: Client, release_id: str) -> Release:
        """Return a release of a population of the client's; one of others is as if it were not there."""
        release = self._ledger.release(release_id)
        if release.population not in client.populations:
            raise NotFound(f"release {release_id!r} is not in this ledger; see `dpca budget show`.")
        return release

    def _acting(self, client: Client, release_id: str) -> Release:
        """Return a release of a population of the client's, of a kind that is released from outside."""
        release = self._row(client, release_id)
        check_family(release.request)
        return release

    def _planned(self, client: Client, asked: messages.Step) -> Release:
        """Return a release that has such a step."""
        release = self._acting(client, asked.release)
        if asked.step >= count_steps(release.event):
            raise Refused(f"release {release.id} reserved fewer steps than {asked.step + 1}; ask for one of them.")
        return release


def serve_ledger(config: LedgerConfig, *, ready: Callable[[str], None]) -> None:
    """Serve the ledger of this process's settings until the process is told to end; finish what a crash left first.

    Parameters
    ----------
    config : LedgerConfig
    ready : callable
        Called with ``host:port`` once it listens.
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
    serve(service.routes(), names={each.fingerprint: each.name for each in config.clients}, context=context, at=at)


def _own(client: Client, population: str) -> str:
    if population not in client.populations:
        raise Refused(f"population {population!r} is none of those that this client may ask about; see its operator.")
    return population
