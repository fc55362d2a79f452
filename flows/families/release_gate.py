"""The gate between a release and its alias: decided from what was published alone, so it costs nothing.

A release that counts rejected records is held where their noised share is larger than allowed, so that no loss is
promoted unseen. Else it passes when some component stands above its noise, by its own assessment, and when it still
holds the directions of the version that the alias means, as far as these stood above theirs. What lies within the noise
counts on neither side: by chance, random directions hold a part of any others.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.artifacts.subspace import PrivateSubspace
from storage.schemas.matching import meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a gate decided, and why.

    Attributes
    ----------
    passes : bool
    reason : str, one line
    verdict : str or None, the release's own
    drift : float or None, from 0 (all is held) to 1 (none); None where there is nothing to compare with
    """

    passes: bool
    reason: str
    verdict: str | None
    drift: float | None

    def facts(self) -> dict[str, Any]:
        """Return it as public facts."""
        return {"reason": self.reason, "verdict": self.verdict, "drift": self.drift}


def judge(candidate: PrivateSubspace, champion: PrivateSubspace | None, *, drift_at_most: float) -> Judgement:
    """Decide whether a release may take the place of a champion, which may be missing.

    Parameters
    ----------
    candidate : PrivateSubspace
        The release.
    champion : PrivateSubspace or None
        What the alias means now.
    drift_at_most : float
        The part of the champion's directions above the noise that those of a release above its own may lack.
    """
    said, above = candidate.outcome.get("verdict"), candidate.outcome.get("above_noise")
    allowed, rejected = (
        candidate.manifest.get("plan", {}).get("hold_if_rejected"),
        candidate.outcome.get("rejected_share"),
    )
    if allowed is not None and (rejected is None or rejected > allowed):
        found = "not stated" if rejected is None else f"{rejected:.3g}"
        return _held(f"the noised share of rejected records, {found}, is above hold_if_rejected={allowed:g}", said)
    if candidate.outcome.get("failed") or above == 0:
        return _held("no component stands above the noise", said)
    if above is None:
        return _held("nothing in the release tells its components from noise", said)
    if champion is None:
        return Judgement(passes=True, reason="the first version that passes", verdict=said, drift=None)
    if _columns(candidate) != _columns(champion):
        return _held("the columns are not those of the champion", said)
    drift = drift_from(candidate, champion)
    if drift is None:
        return Judgement(passes=True, reason="the champion has no component above its noise", verdict=said, drift=None)
    if drift > drift_at_most:
        return _held(f"drift {drift:.3g} is above {drift_at_most:g}", said, drift)
    return Judgement(passes=True, reason=f"drift {drift:.3g} is within {drift_at_most:g}", verdict=said, drift=drift)


def drift_from(candidate: PrivateSubspace, champion: PrivateSubspace) -> float | None:
    """Return the part of the champion's directions above its noise that those of a release above its own do not hold.

    It is one less the mean squared length of those unit directions after projection onto the release's: 0 where they
    hold them all, 1 where they are orthogonal, and 1 - k/d in the mean for k random directions of d.
    """
    known, found = (_above_noise(subspace) for subspace in (champion, candidate))
    if not len(known):
        return None
    return float(np.clip(1.0 - np.square(known @ found.T).sum() / len(known), 0.0, 1.0))


def _above_noise(subspace: PrivateSubspace) -> NDArray[np.float64]:
    """Return the components that stand above the noise, which are the leading ones."""
    return subspace.components[: subspace.outcome.get("above_noise") or 0]


def _held(reason: str, verdict: str | None, drift: float | None = None) -> Judgement:
    return Judgement(passes=False, reason=reason, verdict=verdict, drift=drift)


def _columns(subspace: PrivateSubspace) -> tuple[Any, ...]:
    names = subspace.feature_names
    return subspace.n_features, None if names is None else tuple(names), meaning(subspace.manifest.get("encoder"))
