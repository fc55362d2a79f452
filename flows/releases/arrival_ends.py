"""Outcomes of an arrival (a new file in an inbox), and the gate that promotes its release.

An arrival ends in one of these ways: its release is promoted, held (published without moving the alias) or kept back
(not published), the budget refuses it, or no snapshot can be made from it. Each outcome is decided from permanent
records, so a repeated run after a crash ends the same way. Each outcome is notified once.

The gate decides whether an alias moves to a release. It uses published facts only and therefore costs nothing.
A release that counts rejected records is held if their noised share exceeds the allowed one, so that no loss is
promoted unseen. Otherwise the release passes under two conditions. By its own assessment, at least one component must
be above the noise. It must also still capture those directions of the champion that are above the champion's noise.
The champion is the version that the alias points to. Directions within the noise are ignored on both sides, because
random directions capture part of any other directions by chance.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BadSource, NotFound, Unavailable
from dpca.registry.pointers import Resolved
from dpca.registry.reader import Registry
from dpca.schemas.frames import meaning
from flows.releases.running import deliver_notices, give_notice, note_event
from flows.releases.stages import kept_back
from storage.datasets.inbox import Inbox
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Decision on whether an alias moves to a release, with the reason.

    Attributes
    ----------
    passes : bool
    reason : str, one line
    verdict : str or None, the verdict of the release's self-assessment
    drift : float or None, from 0 (all directions are captured) to 1 (none); None where there is no comparison
    """

    passes: bool
    reason: str
    verdict: str | None
    drift: float | None

    def facts(self) -> dict[str, Any]:
        """Return the decision as public facts."""
        return {"reason": self.reason, "verdict": self.verdict, "drift": self.drift}


def judge(candidate: PrivateSubspace, champion: PrivateSubspace | None, *, drift_at_most: float) -> Judgement:
    """Decide whether a release may replace the champion, if there is one.

    Parameters
    ----------
    candidate : PrivateSubspace
        The release.
    champion : PrivateSubspace or None
        The version that the alias points to now.
    drift_at_most : float
        Largest accepted drift, as `drift_from` defines it.
    """
    text, above = candidate.outcome.get("verdict"), candidate.outcome.get("above_noise")
    allowed, rejected = (
        candidate.manifest.get("plan", {}).get("hold_if_rejected"),
        candidate.outcome.get("rejected_share"),
    )
    if allowed is not None and (rejected is None or rejected > allowed):
        found = "not stated" if rejected is None else f"{rejected:.3g}"
        return _held(f"the noised share of rejected records, {found}, is above hold_if_rejected={allowed:g}", text)
    if candidate.outcome.get("failed") or above == 0:
        return _held("no component is above the noise", text)
    if above is None:
        return _held("the release does not state which components are above the noise", text)
    if champion is None:
        return Judgement(passes=True, reason="the first version that passes", verdict=text, drift=None)
    if _columns(candidate) != _columns(champion):
        return _held("the columns differ from those of the champion", text)
    drift = drift_from(candidate, champion)
    if drift is None:
        return Judgement(passes=True, reason="the champion has no component above its noise", verdict=text, drift=None)
    if drift > drift_at_most:
        return _held(f"drift {drift:.3g} is above {drift_at_most:g}", text, drift)
    return Judgement(passes=True, reason=f"drift {drift:.3g} is within {drift_at_most:g}", verdict=text, drift=drift)


def drift_from(candidate: PrivateSubspace, champion: PrivateSubspace) -> float | None:
    """Return the part of the champion's directions that the release does not capture; None if the champion has none.

    On both sides only the directions above the noise count. The drift is one minus the mean squared length of the
    champion's unit directions after projection onto the directions of the release. It is 0 where the release captures
    all of them, and 1 where all are orthogonal to it. For k random directions of d it is 1 - k/d in the mean.
    """
    known, found = (_above_noise(subspace) for subspace in (champion, candidate))
    if not len(known):
        return None
    return float(np.clip(1.0 - np.square(known @ found.T).sum() / len(known), 0.0, 1.0))


def _above_noise(subspace: PrivateSubspace) -> NDArray[np.float64]:
    """Return the components above the noise, which are the leading ones."""
    return subspace.components[: subspace.outcome.get("above_noise") or 0]


def _held(reason: str, verdict: str | None, drift: float | None = None) -> Judgement:
    return Judgement(passes=False, reason=reason, verdict=verdict, drift=drift)


def _columns(subspace: PrivateSubspace) -> tuple[Any, ...]:
    names = subspace.feature_names
    return subspace.n_features, None if names is None else tuple(names), meaning(subspace.manifest.get("encoder"))


LOG = logging.getLogger("dpca.flows")
_ATTEMPTS = 8


def decide_release(artifact: str, alias: str, drift_at_most: float, token: str, dataset: str) -> dict[str, Any]:
    """Move an alias to a published release, or leave the alias as it is; send a notice of the decision.

    The arrival of the release ends. A release to which the alias pointed before counts as promoted, and the alias stays
    where it is now.
    """
    workspace = Workspace.open()
    registry, name = workspace.registry, artifact.partition("@")[0]
    found = registry.verify(artifact)
    promoted, facts = _moved_or_held(workspace, found, alias=alias, drift_at_most=drift_at_most)
    what = "promoted" if promoted else "held"
    shown = registry.show(artifact)
    reported = {**facts, "digest": found.digest, "epsilon": shown["epsilon"], "delta": shown["delta"]}
    reported["statement"] = shown["statement"]
    give_notice(
        workspace.home, f"release.{what}", key=f"{workspace.ledger.id} {artifact} {alias}", about=name, facts=reported
    )
    Inbox(workspace.home, dataset).end(token, "released")
    return {"decision": what, **facts}


def refuse_arrival(token: str, dataset: str, publish: str) -> None:
    """End an arrival whose release the budget does not admit, and send a notice."""
    workspace = Workspace.open()
    population = workspace.catalog.current(dataset).population
    facts = {"population": population, "remaining": workspace.ledger.statement(population, newest=0).remaining}
    give_notice(workspace.home, "release.refused", key=f"refused {token}", about=publish, facts=facts)
    Inbox(workspace.home, dataset).end(token, "refused")


def settle_withheld(run_key: str, token: str, dataset: str) -> bool:
    """End an arrival whose release will never be published, and send a notice; return whether it ended.

    After any other failure the arrival waits for the next run, because the failure may be temporary.
    """
    workspace = Workspace.open()
    row = workspace.ledger.find(run_key)
    reason = None if row is None else kept_back(workspace, row)
    if row is None or reason is None:
        return False
    facts = {"release": row.id, "state": row.state, "reason": reason}
    give_notice(workspace.home, "release.held", key=f"withheld {token}", about=row.request["publish"], facts=facts)
    Inbox(workspace.home, dataset).end(token, "released")
    return True


def set_aside(tokens: list[str], dataset: str) -> None:
    """End arrivals from which no snapshot can be made, with a notice and a log line for each."""
    home = Workspace.open().home
    inbox = Inbox(home, dataset)
    facts = {"dataset": dataset, "next": "the private report in the home folder states the reason"}
    for token in tokens:
        LOG.error("set aside: %s", inbox.reason(token))
        note_event(home, "arrival.set_aside", key=f"arrival {token}", about=dataset, facts=facts)
        inbox.end(token, "set_aside")
    deliver_notices(home)


def leave_all(tokens: list[str], dataset: str) -> None:
    """Refuse to set aside all waiting files when none of them could be ingested.

    Raises
    ------
    BadSource
        Always, with the reason of the first file.
    """
    inbox = Inbox(Workspace.open().home, dataset)
    count = "the waiting file" if len(tokens) == 1 else f"any of the {len(tokens)} waiting files"
    raise BadSource(f"these options do not fit {count}, so none is set aside; correct them: {inbox.reason(tokens[0])}")


def shown_name(address: str) -> str:
    """Return an address as one printable line, whatever characters the file name contains."""
    return "".join(letter if letter.isprintable() else "?" for letter in address)


def _moved_or_held(
    workspace: Workspace, found: Resolved, *, alias: str, drift_at_most: float
) -> tuple[bool, dict[str, Any]]:
    """Move an alias to a release that passes `judge`; return whether it passed, and the public facts of the decision.

    If an earlier call has already moved the alias to this release, nothing changes, and the release counts as passed.
    """
    registry, name = workspace.registry, found.name
    for _ in range(_ATTEMPTS):
        moves = [move for move in workspace.alias_history(name) if (move.alias, move.version) == (alias, found.version)]
        present = _meant(registry, f"{name}@{alias}")
        before = moves[0].before if moves else None if present is None else present.version
        champion = None if before is None else registry.load(f"{name}@{before}", PrivateSubspace)
        judged = judge(registry.load(str(found), PrivateSubspace), champion, drift_at_most=drift_at_most)
        facts = {"artifact": str(found), "alias": alias, "champion_before": before and f"{name}@{before}"}
        facts |= judged.facts()
        if moves:
            return True, facts
        if before is not None and before > found.version:
            return False, facts | {"reason": f"{name}@{before} is newer"}
        if not judged.passes:
            return False, facts
        why = {fact: value for fact, value in judged.facts().items() if value is not None}
        if workspace.advance(name, version=found.version, alias=alias, before=before, why=why):
            return True, facts
    raise Unavailable(
        f"alias {alias!r} of {name} was moved several times while a release was judged; run the refresh again."
    )


def _meant(registry: Registry, reference: str) -> Resolved | None:
    try:
        return registry.resolve(reference)
    except NotFound:
        return None
