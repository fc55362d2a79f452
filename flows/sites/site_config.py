"""The configuration of a site or of the helper: its operator's own file, which nobody else sees.

::

    name: north                       # as in the roster; helper, for the helper
    roster: roster.yaml
    key: north.key
    listen: "0.0.0.0:8700"
    dataset: scans                    # of this home, DPCA_HOME
    limits: {epsilon: 1.0, delta: 1e-6, methods: [cape_pca, dps_pca]}

Paths are from the folder of the file. The limits are for one release; what all releases together spend is the budget's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.sites import OVER_ROSTER
from flows.parties.calling import Post
from flows.parties.config_files import check_names, read_yaml
from flows.requests.sites import SitesRequest
from flows.sites.roster_file import HELPER, RosterFile, read_roster

_NEEDED = {"name", "roster", "key", "listen"}
_OF_SITES = {"dataset", "limits"}
_LIMITS = {"epsilon", "delta", "methods"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operator admits of one release at most."""

    epsilon: float
    delta: float
    methods: tuple[str, ...]

    def check(self, request: SitesRequest) -> None:
        """Refuse a request beyond them.

        Raises
        ------
        Refused
            With the limit.
        """
        if request.method not in self.methods:
            raise Refused(
                f"method={request.method!r} is not one that this site's operator admits ({', '.join(self.methods)}); "
                "ask for one of them."
            )
        for name, most in (("epsilon", self.epsilon), ("delta", self.delta)):
            if getattr(request, name) > most:
                raise Refused(
                    f"{name}={getattr(request, name):g} is above {most:g}, the most that this site's operator admits "
                    "of one release; ask for less."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyConfig:
    """The configuration of a party that listens; dataset and limits are a site's."""

    name: str
    roster: RosterFile
    certificate: Path
    key: Path
    listen: str
    dataset: str = ""
    limits: Limits | None = None

    @property
    def post(self) -> Post:
        """What the roster says of this party."""
        if self.limits is None:
            assert self.roster.helper is not None
            return self.roster.helper
        return self.roster.site(self.name)


def read_config(path: Path | str) -> PartyConfig:
    """Read the configuration of a site, or of the helper where its name is that.

    Raises
    ------
    InvalidInput
        When it is not as it must be, or the roster does not name this party.
    """
    path = Path(path)
    content = read_yaml(path, what="the configuration")
    is_site = content.get("name") != HELPER
    known = _NEEDED | {"certificate"} | (_OF_SITES if is_site else set())
    check_names(content, known=known, needed=_NEEDED | (_OF_SITES if is_site else set()), what=f"{path}")
    folder, name = path.parent, str(content["name"])
    made = PartyConfig(
        name=name,
        roster=read_roster(folder / str(content["roster"])),
        certificate=folder / str(content.get("certificate", f"{name}.pem")),
        key=folder / str(content["key"]),
        listen=str(content["listen"]),
        dataset=str(content.get("dataset", "")),
        limits=_limits(content["limits"], path) if is_site else None,
    )
    if not is_site and made.roster.helper is None:
        raise InvalidInput(f"{path} is of a helper, and its roster has none; add one, or do without this service.")
    if made.certificate.read_text(encoding="ascii") != made.post.certificate:
        raise InvalidInput(
            f"{made.certificate} is not the certificate that the roster names for {name}; give every party the roster "
            "with the present one."
        )
    return made


def _limits(content: Any, path: Path) -> Limits:
    if not isinstance(content, Mapping):
        raise InvalidInput(f"limits of {path} is no mapping with epsilon, delta and methods; state what is admitted.")
    check_names(content, known=_LIMITS, needed=_LIMITS, what=f"limits of {path}")
    methods = content["methods"]
    if not isinstance(methods, list) or not methods or not set(map(str, methods)) <= set(OVER_ROSTER):
        raise InvalidInput(f"limits of {path} must list methods of {', '.join(sorted(OVER_ROSTER))}; list some.")
    numbers = {}
    for name in ("epsilon", "delta"):
        try:
            numbers[name] = float(content[name])
        except (TypeError, ValueError):
            numbers[name] = math.nan
        if not numbers[name] > 0:
            raise InvalidInput(f"{name} in limits of {path} is no positive number; state the most of one release.")
    return Limits(**numbers, methods=tuple(map(str, methods)))
