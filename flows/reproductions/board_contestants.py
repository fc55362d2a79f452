"""Who is on the board, and what epsilon each really gives to one replaced record of norm 1."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dpca_tasks.accounting.joint_releases import inverted_sampler_loss
from flows.reproductions.peers import amin

type Bound = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A method on the board.

    Attributes
    ----------
    name : str
    group : {"dpca", "library", "paper"}
    pure : bool
        Whether the delta of its claim is 0.
    request : mapping
        What the child is asked with, besides what all are.
    """

    name: str
    group: Literal["dpca", "library", "paper"]
    pure: bool
    request: Mapping[str, Any] = field(default_factory=dict)


def _ours(mechanism: str, *, name: str | None = None, pure: bool = False, refine: str = "none", **settings: Any) -> Any:
    request = {"method": "mechanism", "mechanism": mechanism, "refine": refine, "settings": settings}
    return Contestant(name=name or mechanism, group="dpca", pure=pure, request=request)


def _paper(paper: str, *, name: str, pure: bool = False) -> Contestant:
    return Contestant(name=name, group="paper", pure=pure, request={"method": "paper", "paper": paper, "settings": {}})


CONTESTANTS = (
    _ours("analyze_gauss"),
    _ours("analyze_gauss", name="analyze_gauss, refined", refine="auto"),
    _ours("mod_sulq"),
    _ours("noisy_power"),
    _ours("dp_spca"),
    _ours("dp_vrpca"),
    _ours("dps_pca"),
    _ours("smooth_sensitivity"),
    _ours("propose_test_release"),
    _ours("local_gaussian"),
    _ours("wishart", pure=True),
    _ours("exponential", pure=True),
    _ours("laplace", pure=True),
    _ours("smooth_sensitivity", name="smooth_sensitivity, spherical t", pure=True, noise="spherical_t"),
    Contestant(name="diffprivlib", group="library", pure=True, request={"method": "diffprivlib"}),
    Contestant(name="OpenDP", group="library", pure=True, request={"method": "opendp"}),
    _paper("amin", name="Amin et al. 2019", pure=True),
    _paper("coinpress", name="CoinPress 2020"),
    _paper("separate", name="Dong et al. 2022, SeparateCov"),
    _paper("adaptive", name="Dong et al. 2022, AdaptiveCov"),
)


def true_epsilon(
    contestant: Contestant, *, epsilon: float, n_components: int, n_features: int, n_records: int
) -> tuple[Bound, float]:
    """Bound the epsilon that a method really gives to a replaced record, at the delta of its claim."""
    shares = {"diffprivlib": epsilon / (n_components + 1), "OpenDP": 2 * epsilon / (3 * n_components)}
    if contestant.name in shares:
        share = shares[contestant.name]
        return "at least", inverted_sampler_loss(slope=share / 4, n_features=n_features, rows=n_records // 2)
    if contestant.request.get("paper") == "amin":
        return "at most", amin.true_epsilon(n_components=n_components, epsilon=epsilon)
    return "at most", epsilon
