"""The plan of a release over several sites, and the noise of their sum.

*Noise (CAPE)*. A site sends the total of three terms: the weighted sum over its records, a share of noise, and a mask.
All masks sum to 0, so the sum of all messages has noise but no mask. The accounting covers everything that is visible
in all messages together. Of S sites, C may collude with the aggregator, and D may drop out. So the shares of noise of
the remaining ``H = S - C - D`` sites alone must provide the guarantee.

>>> [round(Cape(sites=10, colluders=colluders).noise(scale=1.0).total_std, 3) for colluders in (None, 0)]
[1.195, 1.0]
>>> printed = Cape(sites=10, masks="gaussian", calibration="paper", colluders=0).noise(scale=1.0)
>>> round(printed.view_mu(), 3)  # with the published noise, all messages have mu 1.348, although one alone has mu 1
1.348

`masked_messages` computes the messages of one round with Gaussian masks, as published, in floating point and from one
key. It is only for reproductions, and claims no guarantee at the level of bits. Real messages are integers with uniform
masks modulo 2^64, and no one has the keys of all sites.

*Plan*. A `JointPlan` contains one plan for each charged site. If the sites share noise, it also contains a roster, the
list of these sites.

*Sites in this process*. `LocalParties` runs all sites in this process, each with a curator (the access to its rows) and
masks. Sites are named by position, 0000, 0001 and so on, unless a `Membership` names them. In each run, new seeds of
the masks are distributed. The noise, which provides the guarantee, does not depend on these seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.closed_brackets import least_noise, usual_colluders, view_mu
from dpca_tasks.errors import InvalidInput, Refused
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
"""The largest ratio of the variances of Gaussian masks and shares; beyond it, float64 masks no longer sum to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise:
    """The variances of noise and masks in one round of messages from all sites, in the weighted units of the sum.

    ``share_variance`` is the variance of each site's share of noise. ``mask_variance`` is u for Gaussian masks, whose
    covariance between S sites is ``u (I - 1 1^T / S)``, and infinite for uniform masks. ``colluders`` is the number of
    sites that may collude with the aggregator, and ``silent`` the number of sites that may be missing from the sum.
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
        """Return the privacy parameter mu (Gaussian DP) for an observer of all messages together.

        Parameters
        ----------
        distance : float
            How far one record changes the weighted sum of its site.
        colluders : int, optional
            The number of sites that reveal their masks and noise to the observer; by default the tolerated number.
        """
        known = self.colluders if colluders is None else colluders
        honest = self.sites - self.silent - known
        return view_mu(
            sensitivity=distance, honest=honest, share_variance=self.share_variance, mask_variance=self.mask_variance
        )

    def view_epsilon(self, delta: float, *, distance: float = 1.0, colluders: int | None = None) -> float:
        """Return the true epsilon at a delta for an observer of all messages together, as for `view_mu`."""
        mu = self.view_mu(distance=distance, colluders=colluders)
        return gaussian_epsilon(noise_multiplier=1 / mu, delta=delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cape:
    """Noise and masks for a sum over sites: correlated over the sites, so that the sum has little noise (CAPE).

    Parameters
    ----------
    sites : int
        The number S of sites.
    colluders : int, optional
        The number C of sites that may collude with the aggregator; by default below a third of the other sites.
    dropouts : int
        The number D of sites that may be missing from the sum.
    masks : {"uniform", "gaussian"}
        ``uniform``: uniform integers modulo 2^64, which hide a message perfectly. ``gaussian``: as published, in
        floating point, for reproductions.
    mask_ratio : float
        The variance of Gaussian masks divided by the variance of a share of noise.
    calibration : {"tight", "paper"}
        ``tight``: the least noise with which all messages together keep the guarantee. ``paper``: the published
        variances, ``t^2 / S`` for a share and ``(1 - 1/S) t^2`` for a mask. Here t is the std with which one message
        alone keeps the guarantee. All messages together have a larger epsilon, which `SharedNoise.view_epsilon`
        returns.

    References
    ----------
    Imtiaz and Sarwate (2018), Distributed differentially private algorithms using correlated noise. In the paper the
    aggregator also sends masks, which only protect a message in transit. Here messages are encrypted instead.
    """

    sites: int
    colluders: int | None = None
    dropouts: int = 0
    masks: Masks = "uniform"
    mask_ratio: float = 1e6
    calibration: Calibration = "tight"

    def __post_init__(self) -> None:
        """Refuse parameters that leave no honest site, a calibration that does not fit the masks, or a bad ratio."""
        if self.sites < 2:
            raise InvalidInput(f"sites={self.sites} must be at least 2; use a mechanism for one owner instead.")
        if self.dropouts < 0 or self.tolerated < 0 or self.honest < 1:
            raise InvalidInput(
                f"colluders={self.tolerated} and dropouts={self.dropouts} must be at least 0, and at least one of the "
                f"{self.sites} sites must be neither, so that its noise remains unknown; tolerate fewer."
            )
        if self.calibration == "paper" and self.masks != "gaussian":
            raise InvalidInput("calibration=paper is published for Gaussian masks; use masks=gaussian with it.")
        if not 1.0 <= self.mask_ratio <= LARGEST_RATIO:
            raise InvalidInput(
                f"mask_ratio={self.mask_ratio!r} must be from 1 to {LARGEST_RATIO:g}, so that masks hide and cancel; "
                "1e6 is usual."
            )

    @property
    def tolerated(self) -> int:
        """The number C of tolerated colluders: as set, or the default for the number of sites."""
        return usual_colluders(self.sites) if self.colluders is None else self.colluders

    @property
    def honest(self) -> int:
        """The number H of sites that neither collude nor drop out; their shares of noise provide the guarantee."""
        return self.sites - self.tolerated - self.dropouts

    def noise(self, *, scale: float) -> SharedNoise:
        """Return the variances of shares and masks with which the sum protects the records of every site.

        Parameters
        ----------
        scale : float
            The required std of the noise in the sum: ``distance / mu``, if one record changes the sum by ``distance``.
            If the sites have different distances or mus, the scale is the largest such ratio (`least_scale`).
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
    """Return the largest mu for which the Gaussian mechanism of std ``sensitivity / mu`` is (epsilon, delta)-DP."""
    return 1 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta)


def least_scale(*, weights: Sequence[float], sensitivities: Sequence[float], mus: Sequence[float]) -> float:
    """Return the least std of the noise in a weighted sum over sites that protects every site with its mu.

    The strictest site determines the std.
    """
    return math.sqrt(least_noise(weights=weights, sensitivities=sensitivities, mus=mus))


def masked_messages(sums: Floats, noise: SharedNoise, weights: Floats, *, key: bytes) -> Floats:
    """Return the messages of all sites in one round, for reproductions: sum plus share of noise plus Gaussian mask.

    Parameters
    ----------
    sums : float64 array of shape (sites, size)
        The packed statistic of each site, already multiplied by the weight of the site.
    noise : SharedNoise
        The variances of the shares and of the Gaussian masks.
    weights : float64 array of shape (size,)
        For each packed coordinate, the std that isotropic noise of std 1 has in this coordinate.
    key : bytes of length 32
        The key of all random numbers.
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
"""A function that computes the array that a site sends, from a release with noise of this site alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Public facts about the participating sites of a joint release, which do not depend on any dataset.

    Parameters
    ----------
    names : tuple of str
        The names of the sites, in the order of the plan.
    weights : tuple of int, optional
        The factors by which the sites multiply their sums before these are added; 1 by default.
    attempts : int
        The number of charged attempts of each round. If a site drops out, the attempt without this site needs another
        charged step.
    """

    names: tuple[str, ...]
    weights: tuple[int, ...] = ()
    attempts: int = 1

    @property
    def all_weights(self) -> tuple[int, ...]:
        """The weight of each site in the total: as set, or 1."""
        return self.weights or (1,) * len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRound:
    """The plan of one round of a joint release whose rounds have different noise.

    Parameters
    ----------
    roster : Roster
        The sites, with the noise multiplier that the round requires from each.
    noise_multiplier : float
        The noise multiplier of the total, if no site is silent.
    bits : int
        The bits of the grid of the round's answer.
    """

    roster: Roster
    noise_multiplier: float
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """The public plan of a release over sites, computed before any row is read.

    Parameters
    ----------
    sites : tuple of Plan
        One plan for each participating site, in order. The event of the plan is charged to the ledger of the site.
    total : Plan
        The noise and the warnings of the joint result, in the form of the plan of a release by one data owner.
    roster : Roster, optional
        The list of the sites that share noise and masks; None if each site adds its noise independently.
    rounds : tuple of JointRound
        One for each round, if the noise of the rounds differs; else empty.
    """

    sites: tuple[Plan, ...]
    total: Plan
    roster: Roster | None = None
    rounds: tuple[JointRound, ...] = ()

    def roster_of(self, index: int) -> Roster:
        """Return the roster of a round.

        Raises
        ------
        Refused
            If the sites add their noise independently.
        InvalidInput
            If no such round is planned.
        """
        if self.roster is None:
            raise Refused(f"{self.total.mechanism} has no rounds over a roster; request the array of each site.")
        if not self.rounds:
            return self.roster
        if not 0 <= index < len(self.rounds):
            raise InvalidInput(
                f"round {index} is not one of the {len(self.rounds)} planned rounds; request one of them."
            )
        return self.rounds[index].roster


class Parties(Protocol):
    """The interface through which a mechanism requests answers from all sites, in this process or over a network."""

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Return the total of a round over all sites of the roster, or over fewer sites if some drop out.

        If an earlier run stored public inputs of the round, they replace the inputs of the query. See
        `dpca_tasks.sites.rounds.open_round`.
        """

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return the array that each site computes with ``part`` from a noisy release, in the order of the plans."""


class SitesMechanism(Protocol):
    """The interface of all mechanisms over several sites."""

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
        """Compute the noise and the privacy events from the public facts of all sites.

        ``session`` is a name that no other joint release has.
        """

    def run(self, parties: Parties, plan: JointPlan) -> Subspace | Components:
        """Request the planned releases from all planned sites, then post-process the answers."""


class SharedSum(SitesMechanism, Protocol):
    """The interface of mechanisms whose sites share noise and masks, so that only totals become known."""

    def count_rounds(self, plan: JointPlan) -> int:
        """Return the number of rounds; each round computes one total over all sites."""

    def inputs(self, plan: JointPlan, *, index: int) -> Mapping[str, NDArray[Any]]:
        """Return the public arrays that the query of a round may have, in their largest shapes."""

    def query(self, plan: JointPlan, *, index: int, public: Mapping[str, NDArray[Any]]) -> RowSum:
        """Return the query of a round, from the plan and the public arrays of the round alone.

        Each site calls this method itself, so it answers only planned queries. ``public`` are the
        `RowSum.public_inputs` of the query. Raises `InvalidInput` if the arrays are not as planned.
        """


class SeparateSums(SitesMechanism, Protocol):
    """The interface of mechanisms whose sites add noise independently, each to the array that it sends."""

    def noised_part(self, curator: Curator, plan: Plan) -> NDArray[np.float64]:
        """Return the array that a site sends, computed from a release with noise of this site alone."""

    def is_part(self, part: NDArray[np.float64], plan: Plan) -> bool:
        """Return whether a received array has the shape that a site may send, and finite entries."""


def check_sites(problems: Sequence[Problem | TensorProblem]) -> None:
    """Refuse fewer than two sites, different numbers of columns, different relations, and centred problems.

    Raises
    ------
    InvalidInput
        When the sites do not fit together; the message states their values, all of which are public.
    """
    if len(problems) < 2:
        raise InvalidInput(
            f"a sum over sites needs at least 2 sites (got {len(problems)}); name more sites, or fit one site with "
            "dpca subspace."
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
            "center=private is only for the rows of one owner, because sites release uncentred moments; use "
            "center=none."
        )


def check_public(
    public: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], *, index: int, rounds: int
) -> None:
    """Refuse public arrays for a round that is not planned, and arrays with other names, shapes or types than planned.

    Raises
    ------
    InvalidInput
        When the arrays are refused; the message states only the names of the arrays.
    """
    forms = {name: (array.shape, array.dtype) for name, array in public.items()}
    if not 0 <= index < rounds or forms != {name: (array.shape, array.dtype) for name, array in expected.items()}:
        raise InvalidInput(
            f"round {index} with the arrays {', '.join(sorted(public)) or 'none'} is not one of the {rounds} planned "
            f"rounds, which have the arrays {', '.join(sorted(expected)) or 'none'} in fixed shapes; send the planned "
            "request."
        )


def moment_of_total(matrix: NDArray[np.float64], total: Plan, *, bits: int) -> Moment:
    """Return the total second moment over sites as a `Moment`, with the facts about its noise.

    The noise is isotropic, so refinements can use the moment. ``matrix`` is in data units, and ``bits`` sets the
    coarsest grid of all sites.
    """
    assert total.moment_std is not None
    unit = total.problem.clip_norm**2
    noise = measured_noise(total.problem, law="isometric", std=total.moment_std * unit, step=unit / 4.0**bits)
    return Moment(matrix=matrix, released=matrix, noise=noise)


def noise_ratio(*, planned: Roster, answered: Roster) -> float:
    """Return the actual std of the noise in a total divided by the planned std; 1 if all planned sites answered."""
    if answered.size == planned.size:
        return 1.0
    return math.sqrt(answered.size / answered.honest * planned.honest / planned.size)


def noise_of(total: Plan, *, planned: Roster, answered: Roster) -> Plan:
    """Return the plan of a total with the actual noise, if fewer sites have answered than planned."""
    if answered.size == planned.size:
        return total
    ratio = noise_ratio(planned=planned, answered=answered)
    scaled: dict[str, Any] = {
        name: None if (value := getattr(total, name)) is None else ratio * value
        for name in ("noise_multiplier", "noise_edge", "moment_std", "level")
    }
    return replace(total, **scaled)


def pooled[P: Problem | TensorProblem](problems: Sequence[P]) -> P:
    """Return the public facts of the combined rows of all sites, with the sum of the bounds on the record numbers."""
    return replace(
        problems[0],
        records_at_most=sum(problem.records_at_most for problem in problems),
        records_declared=all(problem.records_declared for problem in problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalParties:
    """The sites of a joint release that all run in this process; an implementation of `Parties`.

    Parameters
    ----------
    curators : sequence of Curator
        One curator for each planned site, in the order of the plan.
    roster : Roster, optional
        The list of the sites that share noise, in the same order.
    """

    curators: Sequence[Curator] = field(repr=False)
    roster: Roster | None = None

    def open[Q: RowSum](self, query: Q, *, roster: Roster, index: int) -> Opened[Q]:
        """Return the total of a round over all sites; the masks come from newly distributed seeds."""
        assert self.roster is not None
        dealt = deal_masks(self.roster)
        sites = [
            Site(name=member.name, curator=curator, seeds=dealt[member.name])
            for member, curator in zip(self.roster.members, self.curators, strict=True)
        ]
        return open_round(sites, query, roster=roster, index=index)

    def noised_parts(self, part: NoisedPart, plans: Sequence[Plan]) -> list[NDArray[np.float64]]:
        """Return the array that each site computes with ``part`` from a noisy release, in the order of the plans."""
        return [part(curator, plan) for curator, plan in zip(self.curators, plans, strict=True)]


def membership_of(problems: Sequence[Terms], membership: Membership | None) -> Membership:
    """Return the given membership, or by default one in which the sites are named 0000, 0001 and so on.

    Raises
    ------
    InvalidInput
        When the given membership does not have one name for each site.
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
    share: Fraction = Fraction(1),
) -> Roster:
    """Return the roster of the sites that share noise, with the noise multiplier that each site requires.

    The noise multiplier of a site follows from the site's privacy target and the number ``steps`` of charged steps,
    which together take a ``share`` of the target's mu squared.
    """
    members = [
        Member(
            name=name,
            records=problem.records_at_most,
            noise_multiplier=gaussian_noise_multiplier(
                epsilon=target.epsilon, delta=target.delta, releases=steps, share=share
            ),
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
    """Return the event of ``steps`` Gaussian steps of equal noise multiplier; for one step it is a plain Gaussian."""
    event = events.gaussian(noise_multiplier)
    return event if steps == 1 else events.self_composed(event, steps)


def weighted_scale(roster: Roster) -> float:
    """Return the std of the noise in a total that protects every site of a roster, divided by the sensitivity."""
    return max(member.weight * member.noise_multiplier for member in roster.members)
