"""Which generations a feed keeps, and which have a full copy because a follower asks for one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_dynemb.serving.feed import Generation

_MOST_DOUBLINGS = 6  # of the generations from one answer to the next


def first_to_keep(
    generations: Sequence[Generation],
    keep_generations: int,
    keep_seconds: float | None,
    needed: Iterable[int],
    now_seconds: float,
) -> int:
    """The number of the first generation that stays; all after it do as well.

    It is one with a full copy, so that a new follower can begin there: the last one such that no
    generation that is wanted is older.

    Args:
        generations: those that there are, ascending; one at least.
        keep_generations: so many of the newest are wanted.
        keep_seconds: those that are no older are wanted. None: age does not count.
        needed: the numbers that followers need, with all later ones.
        now_seconds: since 1970-01-01 UTC.
    """
    wanted = [generations[-1].number - keep_generations + 1, *needed]
    if keep_seconds is not None:
        # Those with a later time were made before the clock was set back; their age is unknown.
        young = [g.number for g in generations if abs(now_seconds - g.created_seconds) <= keep_seconds]
        wanted += young[:1]
    full = [g.number for g in generations if g.full is not None and g.number <= min(wanted)]
    return max(full, default=generations[0].number)


class FullCopyAnswer(NamedTuple):
    """A full copy that was made since a follower had asked for one.

    It answers one request: a follower that cannot use it sends another heartbeat. It may be the
    follower's fault, so it is answered more and more seldom, until it asks for none.

    Attributes:
        beat: the number of the heartbeat that asked.
        generation: the number of the one with the full copy.
        times: how many there were one after the other.
    """

    beat: Any
    generation: int
    times: int

    def is_due(self, beat: Any, generation: int) -> bool:
        """Whether a generation is to have a full copy for a heartbeat that asks."""
        wait = 2 ** min(self.times - 1, _MOST_DOUBLINGS)
        return beat != self.beat and generation >= self.generation + wait


class FollowersSeen:
    """Which followers are alive, by the clock of the process that asks: their own may be wrong.

    A follower is alive until its heartbeat has been the same for `forget_after_seconds`.
    """

    def __init__(self, forget_after_seconds: float) -> None:
        self._forget_after_seconds = forget_after_seconds
        self.forgotten: list[str] = []  # those of the last heartbeats that are not alive
        self._seen: dict[str, tuple[dict[str, Any], float]] = {}  # heartbeat, when it was first seen so

    def alive(
        self, heartbeats: Mapping[str, dict[str, Any] | None], now: float | None = None
    ) -> dict[str, dict[str, Any]]:
        """Those of the heartbeats whose followers are alive.

        Args:
            heartbeats: by the followers' names, as they are now; of one that is None, what is known.
            now: seconds of a clock that only goes forward. None: time.monotonic().
        """
        now = time.monotonic() if now is None else now
        seen = {}
        for name, beat in heartbeats.items():
            earlier, since = self._seen.get(name, ({}, now))
            beat = earlier if beat is None else beat
            seen[name] = (beat, since if earlier == beat else now)
        self._seen = seen
        limit = self._forget_after_seconds
        self.forgotten = [name for name, (_, since) in seen.items() if now - since > limit]
        return {name: beat for name, (beat, since) in seen.items() if now - since <= limit}
