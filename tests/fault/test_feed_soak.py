"""A trainer and servers that follow it, disturbed in every way at random moments, for half an hour.

Processes are killed and stopped for a time, the disk of the feed is full for a time, clocks jump. A
server is at every moment what the trainer was after some step, bit for bit, and at the end what it is.
"""

import random
import signal
import threading
import time

import pytest
from conftest import SOAK, SOAK_FACTOR
from feed_processes import LAST, check, processes, undisturbed
from free_ports import free_ports
from side_by_side import wait_until
from small_disk import SmallDisk

from tf_dynemb.serving.feed import Feed

SECONDS = 18 * SOAK_FACTOR if SOAK else 0  # in any case each disturbance once
# What a follower is, and whether it follows the stream.
FOLLOWERS = [("follow", False), ("serve", True)] + ([("follow", True), ("serve", False)] if SOAK else [])
PATIENCE_SECONDS = 240
# At most so many seconds: of a stop, of a full disk, between two disturbances.
STOP, FULL, PAUSE = (4, 3, 1) if SOAK else (1, 1, 0.3)


class Watched:
    """A process that is started again whenever it has been killed; what all of them said, by lines."""

    def __init__(self, start):
        self._start = start
        self.said: list[list[str]] = []
        self.begin()

    def begin(self) -> None:
        self.child, self._lines_before = self._start(), len(self.said)
        self._reader = threading.Thread(target=self._read, args=(self.child,), daemon=True)
        self._reader.start()

    def _read(self, child) -> None:
        for line in child.stdout:
            if line.endswith("\n"):
                self.said.append(line.split())

    @property
    def has_begun(self) -> bool:
        return len(self.said) > self._lines_before

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.ended()
        self.begin()

    def ended(self) -> int:
        code = self.child.wait(PATIENCE_SECONDS)
        self._reader.join()
        return code

    def stop_for(self, seconds: float) -> None:
        self.child.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.child.send_signal(signal.SIGCONT)


@pytest.fixture
def disk(tmp_path):
    small = SmallDisk(tmp_path / "disk")
    yield small
    small.close()


@pytest.mark.soak
@pytest.mark.timeout(600 + 3 * SECONDS)
def test_servers_are_the_trainer_whatever_happens(disk, tmp_path):
    seed = random.SystemRandom().randrange(10**6) if SOAK else 1
    print(f"seed {seed}; the disk {'fills up' if disk.fills_up else 'cannot be filled'}")
    draw = random.Random(seed)
    feed, stream = disk.folder / "feed", {"FEED_STREAM": f"127.0.0.1:{free_ports(1)[0]}"}
    common = {"FEED_PACE": "0.03", "FEED_CLOCK_JUMPS": "1"}
    with processes() as start:

        def start_trainer():
            return start("train", feed, tmp_path / "checkpoint", LAST, **common, **stream)

        def start_follower(role, streams):
            place, extra = feed, stream if streams else {}
            if role == "serve":
                place = tmp_path / f"model-{streams}"
                if not place.exists():
                    assert start("export", feed, place, **extra).wait() == 0
            return start(role, place, LAST, **common, **extra)

        trainer = Watched(start_trainer)
        followers = [Watched(lambda each=each: start_follower(*each)) for each in FOLLOWERS]
        full = 0  # times that the disk was

        def alive(watched):
            """Until it has said something since it was started."""
            full_before, child = full, watched.child
            wait_until(lambda: watched.has_begun or child.poll() is not None, PATIENCE_SECONDS)
            if watched is trainer and child.poll() is not None and full != full_before:
                watched.begin()  # a publisher that cannot write its name
                alive(watched)
            assert watched.child.poll() is None, f"{watched.child.arguments} ended by itself"

        def fill_disk():
            nonlocal full
            if disk.fills_up:
                full += 1
                disk.fill()
                time.sleep(draw.uniform(0.2, FULL))
                disk.free()

        disturbances = [("fill the disk", fill_disk)]
        for name, watched in [("trainer", trainer), *zip(FOLLOWERS, followers, strict=True)]:
            disturbances.append((f"kill {name}", watched.kill))
            disturbances.append(
                (f"stop {name}", lambda watched=watched: watched.stop_for(draw.uniform(0.1, STOP)))
            )
        counts = dict.fromkeys((name for name, _ in disturbances), 0)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or not all(counts.values()):
            # In turns, so that each comes as often, in an order that is another each time.
            for name, disturb in draw.sample(disturbances, len(disturbances)):
                for watched in (trainer, *followers):
                    alive(watched)
                time.sleep(draw.uniform(0, PAUSE))
                disturb()
                counts[name] += 1
        for watched in (trainer, *followers):
            alive(watched)
        (tmp_path / "end").touch()
        wait_until(lambda: trainer.said and len(trainer.said[-1]) == 2, PATIENCE_SECONDS)
        last, steps = trainer.said[-1]
        assert Feed(feed).numbers()[-1] == int(last)
        for watched in followers:
            wait_until(
                lambda watched=watched: watched.said and watched.said[-1][:2] == [last, steps],
                PATIENCE_SECONDS,
            )
        trainer.child.stdin.close()
        assert trainer.ended() == 0
    said = [list(watched.said) for watched in followers]
    # A trainer that is killed may have published a step that it has not said.
    done = [int(line[-1]) for line in trainer.said] + [int(line[1]) for lines in said for line in lines]
    with processes() as start:
        want = undisturbed(start, max(done))
    for of_follower in said:
        check(of_follower, want)
        assert [last, steps, want[int(steps)]] in [line[:3] for line in of_follower]
    print(f"{counts}; generation {last}, step {steps}; said by followers: {[len(s) for s in said]}")
