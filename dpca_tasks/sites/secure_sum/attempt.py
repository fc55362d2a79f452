"""Both sides of one attempt of a secure sum.

A site's side of one attempt: one frame in, one frame out, phase after phase.

The server's side of one attempt: all sites are asked at once, phase by phase, and those that answer go on.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from dpca_tasks.errors import MessageRefused, SiteSilent
from dpca_tasks.sites.secure_sum.keys import ServerKeys
from dpca_tasks.sites.secure_sum.opening import Total
from dpca_tasks.sites.secure_sum.roster import SiteRoster, propose
from dpca_tasks.sites.secure_sum.session import ServerPhase, SitePhase, SiteSession
from dpca_tasks.sites.secure_sum.wire import Scene

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


Line = Callable[[bytes], bytes]
"""Takes a frame to a site and returns its answer; raises `SiteSilent` where none comes in time."""


def open_sum(scene: Scene, lines: Mapping[str, Line]) -> Total:
    """Go through the phases of one attempt.

    Parameters
    ----------
    scene : Scene
    lines : mapping of str to callable
        The connection to each site of the roster. A line is used by one thread at a time.

    Returns
    -------
    Total
        The exact sum of the senders' integers; they are at least as many as the threshold.

    Raises
    ------
    SiteSilent
        When fewer than the threshold stayed; nothing is opened.
    MessageRefused
        When the shares at hand do not open the sum.
    """
    participants = scene.participants
    everyone = frozenset(range(scene.sites))
    frames, phase = dict.fromkeys(sorted(everyone), propose(scene)), ServerKeys(scene=scene, awaited=everyone)
    with ThreadPoolExecutor(max_workers=scene.sites) as pool:
        closed: Any = (frames, phase)
        while not isinstance(closed, Total):
            frames, phase = closed
            answers = {
                place: pool.submit(_ask, lines[participants.names[place]], frame) for place, frame in frames.items()
            }
            for place, answer in answers.items():
                _take(phase, place, answer.result())
            closed = phase.close()
    return closed


def _ask(line: Line, frame: bytes) -> bytes | None:
    try:
        return line(frame)
    except (SiteSilent, MessageRefused) as reason:
        logger.warning("a site gave no answer: %s", reason)
        return None


def _take(phase: ServerPhase[Any], place: int, answer: bytes | None) -> None:
    if answer is None:
        return
    try:
        phase.receive(answer, sender=place)
    except MessageRefused as refused:
        logger.warning("message refused: %s", refused)
