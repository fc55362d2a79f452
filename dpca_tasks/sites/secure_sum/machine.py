"""A site's side of one attempt: one frame in, one frame out, phase after phase."""

import logging
from threading import Lock
from typing import Any

from dpca_tasks.errors import MessageRefused
from dpca_tasks.sites.secure_sum.roster import SiteRoster
from dpca_tasks.sites.secure_sum.session import SitePhase, SiteSession

logger = logging.getLogger("dpca.sites")


class SiteMachine:
    """The phases of one attempt at one site.

    Its secrets are in this object alone: when the process ends, the attempt has ended for this site, and another is
    begun.

    Parameters
    ----------
    session : SiteSession
    """

    def __init__(self, session: SiteSession) -> None:
        self._phase: SitePhase[Any] = SiteRoster(session=session)
        self._turn = Lock()  # of two frames that come at once, the second finds the phase after the first

    @property
    def longest(self) -> int:
        """The most bytes that the present phase reads."""
        return self._phase.longest

    def receive(self, raw: bytes) -> bytes:
        """Return the answer to a frame of the server.

        Raises
        ------
        MessageRefused
            When the present phase refuses it; then the phase stays as it was. The refusal is logged, without content.
        """
        with self._turn:
            try:
                answer, self._phase = self._phase.receive(raw)
            except MessageRefused as refused:
                logger.warning("message refused: %s", refused)
                raise
            return answer
