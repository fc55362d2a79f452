"""The plan of a release over sites, and the noise of sums whose masks cancel.

*Noise (CAPE)*. A site sends its weighted sum, a share of noise, and a mask; all masks sum to 0. The accounting covers
the joint view of all messages. Of S sites, C may collude with the aggregator and D may drop out. So the shares of the
remaining ``H = S - C - D`` sites alone must provide the guarantee.

>>> [round(Cape(sites=10, colluders=colluders).noise(scale=1.0).total_std, 3) for colluders in (None, 0)]
[1.195, 1.0]
>>> printed = Cape(sites=10, masks="gaussian", calibration="paper", colluders=0).noise(scale=1.0)
>>> round(printed.view_mu(), 3)  # one message alone has a mu of 1
1.348

`masked_messages` computes the messages of one round with Gaussian masks, as published, in floating point and from one
key. It is only for reproductions and claims no bit-level guarantee. Real messages are integers under masks of a ring,
and no one has all the keys.

*Plan*. A `JointPlan` has one plan for each charged site, and a roster if the sites share noise.

*Sites in this process*. Each site has a curator and masks. Sites are named by position, 0000, 0001 and so on, unless
their `Membership` name them. A dealer in this process distributes new seeds of the masks in each run. The noise, which
provides the guarantee, does not depend on these seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import least_noise, usual_colluders, view_mu
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Calibration, Components, Plan, PrivacyTarget, Problem, Subspace, Terms
from dpca_tasks.mechanisms.released_moment import Moment, measured_noise
from dpca_tasks.mechanisms.tensors.tensor_releases import TensorProblem
from dpca_tasks.noise.keystream import normals, subkey
from dpca_tasks.privacy.curator import Curator, Site
from dpca_tasks.queries.base import RowSum
from dpca_tasks.sites.roster import Member, Roster, deal_masks, gaussian_masks
from dpca_tasks.sites.rounds import Opened, open_round

type Floats = NDArray[np.float64]

Masks = Literal["uniform", "gaussian"]

LARGEST_RATIO = 1e12
"""The ratio of the variances of Gaussian masks and shares beyond which the masks' sum in float64 is no longer 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise:
    """The variances of a round of messages, in the weighted units of the sum.

    ``share_variance`` is the variance of each site's share of noise. ``mask_variance`` is u for masks of covariance
    ``u (I - 1 1^T / S)``, and infinite for uniform masks of a ring. ``silent`` sites may be missing from the sum.
    """

    sites: int
    colluders: int
    silent: int
    share_variance: float
    mask_variance: float

    @property
    def total_std(self) -> float:
        """The std of the noise in the sum of all messages, if no site is silent."""
        return math.sqrt(self.sites * self.share_variance)

    def view_mu(self, *, distance: float = 1.0, colluders: int | None = None) -> float:
        """Return the mu of all messages together, for a record that changes its site's weighted sum by a distance.

        Parameters
        ----------
        distance : float
        colluders : int, optional
            The number of sites that reveal their masks and noise to the observer of the messages; by default the
            tolerated number.
        """
        known = self.colluders if colluders is None else colluders
        honest = self.sites - self.silent - known
        return view_mu(
            sensitivity=distance, honest=honest, share_variance=self.share_variance, mask_variance=self.mask_variance
        )

    def view_epsilon(self, delta: float, *, distance: float = 1.0, colluders: int | None = None) -> float:
        """Return the true epsilon of all messages together at a delta."""
        mu = self.view_mu(distance=distance, colluders=colluders)
        return gaussian_epsilon(noise_multiplier=1 / mu, delta=delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cape:
    """Correlated noise for a sum over sites.

    Parameters
    ----------
    sites : int
        S.
    colluders : int, optional
        C, the sites that may collude with the aggregator; below a third of the others by default.
    dropouts : int
        D, the sites that may be missing from the opened sum.
    masks : {"uniform", "gaussian"}
        ``uniform``: masks of a ring, which hide perfectly. ``gaussian``: as published, in floating point, for
        reproductions.
    mask_ratio : float
        The variance of Gaussian masks over the variance of a share.
    calibration : {"tight", "paper"}
        ``tight``: the least noise with which all messages together keep the guarantee. ``paper``: share ``t^2 / S`` and
        mask ``(1 - 1/S) t^2``, where one message alone would keep the guarantee with std t. All messages together have
        a larger epsilon, which `SharedNoise.view_epsilon` returns.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise. The aggregator's
    masks of the paper only protect a message in transit. Here messages are encrypted, so there are no such masks.
    """

    sites: int
    colluders: int | None = None
    dropouts: int = 0
    masks: Masks = "uniform"
    mask_ratio: float = 1e6
    calibration: Calibration = "tight"

    def __post_init__(self) -> None:
        """Refuse parameters that leave no honest site, and a calibration that does not fit the masks."""
        if self.sites < 2:
            raise InvalidInput(f"sites={self.sites} must be at least 2; use a mechanism for one owner instead.")
        if self.dropouts < 0 or self.tolerated < 0 or self.honest < 1:
            raise InvalidInput(
                f"colluders={self.tolerated} and dropouts={self.dropouts} must be at least 0 and leave one of "
                f"{self.sites} sites, whose noise must remain unknown; tolerate fewer."
            )
        if self.calibration == "paper" and self.masks != "gaussian":
            raise InvalidInput("calibration=paper is printed for Gaussian masks; use masks=gaussian with it.")
        if not 1.0 <= self.mask_ratio <= LARGEST_RATIO:
            raise InvalidInput(
                f"mask_ratio={self.mask_ratio!r} must be from 1 to {LARGEST_RATIO:g}, so that masks hide and cancel; "
                "1e6 is usual."
            )

    @property
    def tolerated(self) -> int:
        """C, the number of tolerated colluders."""
        return usual_colluders(self.sites) if self.colluders is None else self.colluders

    @property
    def honest(self) -> int:
        """H, the number of sites whose shares provide the guarantee."""
        return self.sites - self.tolerated - self.dropouts

    def noise(self, *, scale: float) -> SharedNoise:
        """Return variances that give every site at least its required noise ``distance / mu``.

        Parameters
        ----------
        scale : float
            The std of pooled noise: ``distance / mu``, or its largest value if the sites differ (`least_scale`).
        """
        if self.calibration == "paper":
            return self._shared(scale**2 / self.sites, scale**2)
        if self.masks == "uniform":
            return self._shared(scale**2 / self.honest, math.inf)
        share = scale**2 * (1 / self.honest + (1 - 1 / self.honest) / (1 + self.mask_ratio))
        return self._shared(share, self.mask_ratio * share)

    def _shared(self, share: float, mask: float) -> SharedNoise:
        return SharedNoise(
            sites=self.sites,
            colluders=self.tolerated,
            silent=self.dropouts,
            share_variance=share,
            mask_variance=mask,
        )


def mu_of(*, epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian mechanism is (epsilon, delta)-DP."""
    return 1 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta)


def least_scale(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the least std of pooled noise that gives every site its mu, set by the strictest site."""
    return math.sqrt(least_noise(weights=weights, sensitivities=sensitivities, mus=mus))


def masked_messages(sums: Floats, noise: SharedNoise, weights: Floats, *, key: bytes) -> Floats:
    """Return the messages of all sites, each the sum of a weighted sum, a share of noise, and a mask.

    Parameters
    ----------
    sums : float64 array of shape (sites, size)
        Packed statistics, each already multiplied by its site's weight.
    noise : SharedNoise
        With Gaussian masks.
    weights : float64 array of shape (size,)
        The std of each packed coordinate of isometric noise of std 1.
    key : bytes of length 32
    """
    sites, size = sums.shape
    masks = subkey(key, label="masks", info=b"")
    messages = gaussian_masks(masks, sites=sites, size=size, variance=noise.mask_variance)
    shares = normals(subkey(key, label="shares", info=b""), start=0, stop=sums.size).reshape(sums.shape)
    messages += math.sqrt(noise.share_variance) * shares
    messages *= weights
    messages += sums
    return messages


type NoisedPart = Callable[[Curator, Plan], NDArray[np.float64]]
"""Function that computes the array that a site sends, from the release that the site noised itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Public facts of a roster that do not depend on any dataset.

    Parameters
    ----------
    names : tuple of str
        One for each site, in the order of the plan.
    weights : tuple of int, optional
        The factor by which each site multiplies its sum in opened totals; 1 by default.
    attempts : int
        The charged steps of each round: one for each roster that is tried in the round.
    """

    names: tuple[str, ...]
    weights: tuple[int, ...] = ()
    attempts: int = 1

    @property
    def all_weights(self) -> tuple[int, ...]:
        """The weight of each site."""
        return self.weights or (1,) * len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """The public plan of a release over sites, computed before any row is read.

    Parameters
    ----------
    sites : tuple of Plan
        One plan for each participating site, in order; the site's ledger is charged its event.
    total : Plan
        The noise of the joint result, in the form of a plan by one data owner. Its warnings are the warnings of the
        release.
    roster : Roster, optional
        The sites that share noise and masks, if they do.
    """

    sites: tuple[Plan, ...]
    total: Plan
    roster: Roster | None = None


class Parties(Protocol):
    """The interface of all sites of a joint release together, in this process or behind connections."""

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Open the total of a round over a roster, or over a smaller one; see `dpca_tasks.sites.rounds.open_round`."""

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return the array that each planned site sends from its own noised release, in the order of the plans."""


class SitesMechanism(Protocol):
    """The interface of mechanisms over sites."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def plan(
        self,
        problems: Sequence[Any],
        targets: Sequence[PrivacyTarget],
        *,
        session: str,
        membership: Membership | None = None,
    ) -> JointPlan:
        """Compute noise and events from the public facts of all sites; ``session`` is unique to this joint release."""

    def run(self, parties: Parties, plan: JointPlan) -> Subspace | Components:
        """Make the planned releases at all planned sites, then post-process the answers."""


class SharedSum(SitesMechanism, Protocol):
    """The interface of mechanisms whose sites share noise and masks."""

    @property
    def rounds(self) -> int:
        """The number of opened totals."""

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return the public arrays that a round may have, in their largest shapes."""

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query of a round, computed only from the plan and the round's public arrays.

        Each site calls this itself. ``public`` are the `RowSum.public_inputs` of the query. Raises `InvalidInput` if
        they are not as planned.
        """


class SeparateSums(SitesMechanism, Protocol):
    """The interface of mechanisms whose sites add noise independently to what they send."""

    def noised_part(self, curator: Curator, plan: Plan) -> NDArray[np.float64]:
        """Return the array that a site sends from its own noised release."""

    def is_part(self, part: NDArray[np.float64], plan: Plan) -> bool:
        """Return whether an array has a form that a site may send."""


def check_sites(problems: Sequence[Problem | TensorProblem]) -> None:
    """Refuse fewer than two sites, different numbers of columns, different relations, and centred problems.

    Raises
    ------
    InvalidInput
        The message states the values, all of which are public.
    """
    if len(problems) < 2:
        raise InvalidInput(
            f"a sum over sites needs at least 2 sites (got {len(problems)}); name more, or fit one site with dpca "
            "subspace."
        )
    for found, each in (
        ("columns", [str(problem.n_features) for problem in problems]),
        ("as neighbouring relation", [problem.relation for problem in problems]),
    ):
        if len(set(each)) > 1:
            raise InvalidInput(
                f"the sites have {', '.join(each)} {found}, and a sum over sites needs one value; omit the sites that "
                "differ."
            )
    if any(isinstance(problem, Problem) and problem.center != "none" for problem in problems):
        raise InvalidInput(
            "center=private is for one owner's rows, and sites release moments around the origin; use center=none."
        )


def check_public(
    public: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], *, index: int, rounds: int
) -> None:
    """Refuse public arrays of an unplanned round, and arrays with unplanned names, shapes or types.

    Raises
    ------
    InvalidInput
        The message states only the names.
    """
    forms = {name: (array.shape, array.dtype) for name, array in public.items()}
    if not 0 <= index < rounds or forms != {name: (array.shape, array.dtype) for name, array in expected.items()}:
        raise InvalidInput(
            f"round {index} with the arrays {', '.join(sorted(public)) or 'none'} is not one of the {rounds} planned, "
            f"which take {', '.join(sorted(expected)) or 'none'}, of planned shapes; send the planned request."
        )


def moment_of_total(matrix: NDArray[np.float64], total: Plan, *, bits: int) -> Moment:
    """Return a total in data units as a released moment, which can be refined since its noise is isometric.

    ``bits`` is the grid of the coarsest site.
    """
    assert total.moment_std is not None
    unit = total.problem.clip_norm**2
    noise = measured_noise(total.problem, law="isometric", std=total.moment_std * unit, step=unit / 4.0**bits)
    return Moment(matrix=matrix, released=matrix, noise=noise)


def noise_of(total: Plan, *, planned: Roster, answered: Roster) -> Plan:
    """Return the plan of a total with the noise of the answering roster, which may be smaller than planned."""
    if answered.size == planned.size:
        return total
    ratio = math.sqrt(answered.size / answered.honest * planned.honest / planned.size)
    scaled: dict[str, Any] = {
        name: None if (value := getattr(total, name)) is None else ratio * value
        for name in ("noise_multiplier", "noise_edge", "moment_std", "level")
    }
    return replace(total, **scaled)


def pooled[P: Problem | TensorProblem](problems: Sequence[P]) -> P:
    """Return the public facts of all sites' rows combined."""
    return replace(
        problems[0],
        records_at_most=sum(problem.records_at_most for problem in problems),
        records_declared=all(problem.records_declared for problem in problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalParties:
    """All sites in this process; see `dpca_tasks.mechanisms.sites.joint_plan.Parties`.

    Parameters
    ----------
    curators : sequence of Curator
        One for each planned site, in the order of the plan.
    roster : Roster, optional
        The sites that share noise, as members in the same order.
    """

    curators: Sequence[Curator] = field(repr=False)
    roster: Roster | None = None

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Open the total of a round, under newly dealt masks."""
        assert self.roster is not None
        dealt = deal_masks(self.roster)
        sites = [
            Site(name=member.name, curator=curator, seeds=dealt[member.name])
            for member, curator in zip(self.roster.members, self.curators, strict=True)
        ]
        return open_round(sites, query, roster=roster, index=index)

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return the array that each site sends from its own noised release."""
        return [part(curator, plan) for curator, plan in zip(self.curators, plans, strict=True)]


def membership_of(problems: Sequence[Terms], membership: Membership | None) -> Membership:
    """Return the seats of the sites, named by position if none are given.

    Raises
    ------
    InvalidInput
        When there is not one seat for each site.
    """
    if membership is None:
        return Membership(names=tuple(f"{at:04d}" for at in range(len(problems))))
    if len(membership.names) != len(problems):
        raise InvalidInput(
            f"{len(problems)} sites need as many names (got {len(membership.names)}); name each site once."
        )
    return membership


def shared_roster(
    session: str,
    problems: Sequence[Terms],
    targets: Sequence[PrivacyTarget],
    *,
    membership: Membership,
    cape: Cape,
    steps: int,
) -> Roster:
    """Return the roster of sites that share noise; each site has its own target over all charged steps."""
    members = [
        Member(
            name=name,
            records=problem.records_at_most,
            noise_multiplier=gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=steps),
            weight=weight,
        )
        for name, weight, problem, target in zip(
            membership.names, membership.all_weights, problems, targets, strict=True
        )
    ]
    return Roster(
        session=session,
        members=tuple(members),
        colluders=cape.tolerated,
        dropouts=cape.dropouts,
        attempts=membership.attempts,
    )


def charged(noise_multiplier: float, *, steps: int) -> events.Event:
    """Return the event of ``steps`` steps of a noise multiplier; one step is not wrapped in a composition."""
    event = events.gaussian(noise_multiplier)
    return event if steps == 1 else events.self_composed(event, steps)


def weighted_scale(roster: Roster) -> float:
    """Return the std of pooled noise that gives every site its mu, over the sensitivity."""
    return max(member.weight * member.noise_multiplier for member in roster.members)
