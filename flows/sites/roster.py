"""Roster file of sites that release together, and configuration of each party.

The roster is public, the same at every party, and fixed before a round::

    features: 1000
    relation: replace_one
    unit: patient_id
    rows_per_unit: 3
    colluders: 1
    attempts: 2
    aggregator: {certificate: aggregator.pem}
    helper: {address: "https://helper.example:8700", certificate: helper.pem}
    sites:
      - {name: north, address: "https://north.example:8700", certificate: north.pem, records: 4000}
      - {name: south, address: "https://south.example:8700", certificate: south.pem, records: 9000, weight: 2}

``unit`` and ``rows_per_unit`` are the privacy unit with which every site opened its budget. They are left out if a unit
is one row. A certificate is a PEM file, with its path relative to the folder of the roster. Every party computes, from
its own copy, a digest of all entries that affect noise or trust. It refuses messages about a roster with another
digest. Addresses and the timeout are not part of the digest, so a site may change its address during a release.

Each site, and the helper, also has a configuration file, which only its operator sees::

    name: north                       # as in the roster; helper, for the helper
    roster: roster.yaml
    key: north.key
    listen: "0.0.0.0:8700"
    dataset: scans                    # of this home, DPCA_HOME
    limits: {epsilon: 1.0, delta: 1e-6, methods: [cape_pca, dps_pca]}

Paths are relative to the folder of the file. The limits apply to one release; the budget limits what all releases
together spend.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpca.artifacts.base import canonical_json
from dpca.errors import Invalid
from dpca.privacy_unit import PrivacyUnit
from dpca_tasks.accounting.closed_brackets import usual_colluders
from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.sites import OVER_ROSTER
from dpca_tasks.mechanisms.sites.joint_plan import Membership
from dpca_tasks.sites.secure_sum.wire import check_threshold
from flows.parties.calling import Post
from flows.parties.certificates import check_names, key_of, read_certificate, read_yaml, signing_key_of
from flows.requests import SitesRequest

RELATIONS = ("replace_one", "add_remove", "zero_out")
HELPER, SECURE_SUM = "helper", "secure_sum"
MASKS = (HELPER, SECURE_SUM)
"""Sources of the masks that hide the sums of a roster's sites."""
_LONGEST = 128  # largest number of characters of a name
_NEEDED = {"name", "roster", "key", "listen"}
_OF_SITES = {"dataset", "limits"}
_NEXT = "correct the roster file in the same way at every party."


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePost(Post):
    """One site of a roster, with the public bound on its number of records and the weight of its sum."""

    records: int
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterFile:
    """The checked contents of a roster file."""

    features: int
    relation: Relation
    unit: PrivacyUnit
    colluders: int
    dropouts: int
    attempts: int
    timeout: float
    masks: str
    aggregator: Post
    helper: Post | None
    sites: tuple[SitePost, ...]

    @property
    def membership(self) -> Membership:
        """The names, weights and number of attempts that a mechanism needs to plan a release."""
        return Membership(
            names=tuple(site.name for site in self.sites),
            weights=tuple(site.weight for site in self.sites),
            attempts=self.attempts,
        )

    @property
    def digest(self) -> str:
        """Digest of all entries that affect noise or trust."""
        parties = [self.aggregator, *([self.helper] if self.helper else []), *self.sites]
        facts = [
            ["roster file 1", self.features, self.relation, self.colluders, self.dropouts, self.attempts, self.masks],
            [self.unit.name, self.unit.rows],
            [[party.name, party.fingerprint] for party in parties],
            [[site.records, site.weight] for site in self.sites],
        ]
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def site(self, name: str) -> SitePost:
        """Return a site by its name.

        Raises
        ------
        InvalidInput
            When the site is not in the roster.
        """
        for site in self.sites:
            if site.name == name:
                return site
        names = ", ".join(site.name for site in self.sites)
        raise InvalidInput(f"site {name!r} is not in the roster ({names}); use one of these.")


def read_roster(path: Path | str) -> RosterFile:
    """Read and check a roster file.

    Raises
    ------
    InvalidInput
        When the file cannot be read, has only one site, or has equal names or keys. Also when ``colluders`` and
        ``dropouts`` together reach the number of sites.
    """
    path = Path(path)
    content = read_yaml(path, what="the roster file")
    known = {*_names_of(RosterFile), "rows_per_unit"}
    check_names(content, known=known, needed={"features", "aggregator", "sites"}, what=f"the roster file {path}")
    listed = content["sites"]
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise InvalidInput(f"sites of {path} must be a list with one entry per site; {_NEXT}")
    sites = tuple(_site(each, folder=path.parent) for each in listed)
    masks = str(content.get("masks", HELPER))
    if masks not in MASKS:
        raise InvalidInput(f"masks={masks!r} is not one of {', '.join(MASKS)}; {_NEXT}")
    relation = str(content.get("relation", "replace_one"))
    if relation not in RELATIONS:
        raise InvalidInput(f"relation={relation!r} is not one of {', '.join(RELATIONS)}; {_NEXT}")
    made = RosterFile(
        features=_whole(content, "features", least=1),
        relation=relation,  # type: ignore[arg-type]
        unit=_unit(content),
        colluders=_whole(content, "colluders", least=0, default=usual_colluders(max(len(sites), 1))),
        dropouts=_whole(content, "dropouts", least=0, default=0),
        attempts=_whole(content, "attempts", least=1, default=1),
        timeout=_timeout(content),
        masks=masks,
        aggregator=_post("aggregator", content["aggregator"], folder=path.parent, listens=False),
        helper=_post("helper", content["helper"], folder=path.parent) if "helper" in content else None,
        sites=sites,
    )
    _check(made)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that a site's operator sets on each release."""

    epsilon: float
    delta: float
    methods: tuple[str, ...]

    def check(self, request: SitesRequest) -> None:
        """Check that a request is within the limits.

        Raises
        ------
        Refused
            With the exceeded limit in the message.
        """
        if request.method not in self.methods:
            raise Refused(
                f"method={request.method!r} is not a method that this site's operator admits "
                f"({', '.join(self.methods)}); request one of these."
            )
        for name, most in (("epsilon", self.epsilon), ("delta", self.delta)):
            if getattr(request, name) > most:
                raise Refused(
                    f"{name}={getattr(request, name):g} is above {most:g}, the most that this site's operator admits "
                    "for one release; request less."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyConfig:
    """Configuration of a site or of the helper; the helper has no dataset and no limits."""

    name: str
    roster: RosterFile
    certificate: Path
    key: Path
    listen: str
    dataset: str = ""
    limits: Limits | None = None

    @property
    def post(self) -> Post:
        """Entry of this party in the roster."""
        if self.limits is None:
            assert self.roster.helper is not None
            return self.roster.helper
        return self.roster.site(self.name)


def read_config(path: Path | str) -> PartyConfig:
    """Read the configuration of a site, or of the helper if the name is ``helper``.

    Raises
    ------
    InvalidInput
        When the configuration is not valid, or the roster does not name this party.
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
        raise InvalidInput(
            f"{path} configures a helper, but its roster has none; add one, or do not start this service."
        )
    if made.certificate.read_text(encoding="ascii") != made.post.certificate:
        raise InvalidInput(
            f"{made.certificate} is not the certificate of {name} in the roster; give every party the roster with the "
            "current certificate."
        )
    return made


def _limits(content: Any, path: Path) -> Limits:
    if not isinstance(content, Mapping):
        raise InvalidInput(
            f"limits of {path} must be a mapping with epsilon, delta and methods; give the admitted values."
        )
    check_names(content, known=_names_of(Limits), needed=_names_of(Limits), what=f"limits of {path}")
    methods = content["methods"]
    if not isinstance(methods, list) or not methods or not set(map(str, methods)) <= set(OVER_ROSTER):
        raise InvalidInput(
            f"limits of {path} must list methods from {', '.join(sorted(OVER_ROSTER))}; list at least one."
        )
    numbers = {}
    for name in ("epsilon", "delta"):
        try:
            numbers[name] = float(content[name])
        except (TypeError, ValueError):
            numbers[name] = math.nan
        if not numbers[name] > 0:
            raise InvalidInput(
                f"{name} in limits of {path} must be a positive number; give the largest value for one release."
            )
    return Limits(**numbers, methods=tuple(map(str, methods)))


def _names_of(kind: type[Any]) -> set[str]:
    """Return the field names of a record, which are the names in its file."""
    return {each.name for each in fields(kind)}


def _check(roster: RosterFile) -> None:
    names = [site.name for site in roster.sites]
    if len(names) < 2:
        raise InvalidInput(
            f"the roster lists {len(names)} sites, but needs at least 2: the sum of one site reveals its part; {_NEXT}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"sites {', '.join(twice)} occur twice; give each site a different name.")
    parties = [roster.aggregator, *([roster.helper] if roster.helper else []), *roster.sites]
    keys: dict[bytes, str] = {}
    for party in parties:
        key = key_of(party.certificate)
        if key in keys:
            raise InvalidInput(
                f"{keys[key]} and {party.name} have the same key, and keys identify parties; give each a different key."
            )
        keys[key] = party.name
    if roster.colluders + roster.dropouts >= len(names):
        raise InvalidInput(
            f"colluders={roster.colluders} and dropouts={roster.dropouts} must together be below {len(names)}, the "
            f"number of sites, so that the noise of at least one site stays unknown; {_NEXT}"
        )
    if roster.masks == SECURE_SUM:
        for site in roster.sites:
            signing_key_of(site.certificate)
        check_threshold(len(names), colluders=roster.colluders, dropouts=roster.dropouts)
    if roster.masks == HELPER and roster.helper is None:
        raise InvalidInput(f"masks=helper needs an entry `helper` with address and certificate; {_NEXT}")


def _site(content: Any, *, folder: Path) -> SitePost:
    if not isinstance(content, Mapping):
        raise InvalidInput(f"an entry of sites must be a mapping with name, address, certificate and records; {_NEXT}")
    name = str(content.get("name", "?"))
    known = _names_of(SitePost)
    check_names(content, known=known, needed=known - {"weight"}, what=f"site {name!r}")
    if not name.isprintable() or not 0 < len(name.strip()) == len(name) <= _LONGEST or ":" in name or name == HELPER:
        raise InvalidInput(
            f"the name {name[:_LONGEST]!r} of a site must be a printable word of at most {_LONGEST} characters "
            f"without a colon, and not {HELPER}; choose another name."
        )
    post = _post(name, {k: content[k] for k in ("address", "certificate")}, folder=folder)
    return SitePost(
        name=post.name,
        address=post.address,
        certificate=post.certificate,
        records=_whole(content, "records", least=1),
        weight=_whole(content, "weight", least=1, default=1),
    )


def _post(name: str, content: Any, *, folder: Path, listens: bool = True) -> Post:
    needed = {"address", "certificate"} if listens else {"certificate"}
    if not isinstance(content, Mapping):
        raise InvalidInput(f"{name} must be a mapping with {' and '.join(sorted(needed))}; {_NEXT}")
    check_names(content, known=needed, needed=needed, what=name)
    address = str(content["address"]).rstrip("/") if listens else None
    if address is not None and not _is_https(address):
        raise InvalidInput(
            f"the address {address!r} of {name} must be an https URL, because messages use HTTPS; {_NEXT}"
        )
    return Post(name=name, address=address, certificate=read_certificate(folder / str(content["certificate"])))


def _is_https(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the address has an invalid port or an unclosed bracket
        return False


def _whole(content: Mapping[str, Any], name: str, *, least: int, default: int | None = None) -> int:
    value = content.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name}={value!r} must be a whole number, at least {least}; {_NEXT}")
    return value


def _unit(content: Mapping[str, Any]) -> PrivacyUnit:
    rows = _whole(content, "rows_per_unit", least=1) if "rows_per_unit" in content else None
    try:
        return PrivacyUnit.requested(content.get("unit"), rows)
    except Invalid as error:
        raise InvalidInput(f"{str(error).rstrip('.')}; {_NEXT}") from None


def _timeout(content: Mapping[str, Any]) -> float:
    value = content.get("timeout", 60)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86400:
        raise InvalidInput(f"timeout={value!r} must be in seconds, above 0 and below one day; {_NEXT}")
    return float(value)
