"""Rosters of a joint release for tests."""

from dpca_tasks.sites.roster import Member, Roster


def roster_of(size, *, multiplier=4.0, **facts):
    """Return a roster of ``size`` sites named ``a``, ``b``, ... with equal facts."""
    members = tuple(Member(name=chr(97 + at), records=1000, noise_multiplier=multiplier) for at in range(size))
    return Roster(**{"session": "spring", "members": members, "colluders": 0, **facts})
