"""Noticing that another rank has died or hangs, while this one computes or waits for it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

#: Seconds between two signs of life, and after how many without one a rank counts as dead.
PERIOD, SILENCE = 2.0, 30.0
#: Called, the last one first, before a rank that waits for one that has gone ends its process.
before_end: list[Callable[[], object]] = []
#: Exit code: it ran, and there is no result.
FAILED = 3


@contextlib.contextmanager
def heartbeat(store: Store, rank: int, size: int) -> Iterator[None]:
    """Give signs of life in a thread, and end this process where another one's have stopped.

    A collective that waits for a dead process may wait for ever, and nothing but the end of the process gets it out of
    there."""
    done = threading.Event()
    beats = [0]
    thread = threading.Thread(target=_watch, args=(store, rank, size, done, beats), name="erfscope-watch", daemon=True)
    thread.start()
    threading.Thread(
        target=_watch_store, args=(rank, size, done, beats), name="erfscope-watch-store", daemon=True
    ).start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=SILENCE)
        with contextlib.suppress(RuntimeError):
            store.set(f"left/{rank}", "yes")


def _watch(store: Store, rank: int, size: int, done: threading.Event, beats: list[int]) -> None:
    heard = {other: ("", time.monotonic()) for other in range(size) if other != rank}
    asked = time.monotonic()
    while not done.wait(PERIOD):
        beats[0] += 1
        try:
            store.set(f"beat/{rank}", str(beats[0]))
            for other in [other for other in heard if store.check([f"left/{other}"])]:
                del heard[other]
            for other, (last, _) in heard.items():
                if store.check([f"beat/{other}"]) and (now := store.get(f"beat/{other}").decode()) != last:
                    heard[other] = now, time.monotonic()
            asked = time.monotonic()
        except RuntimeError:
            # The store lives with the launcher or with rank 0: it may have gone because all is done.
            pass
        late = time.monotonic() - SILENCE
        silent = [other for other, (_, at) in heard.items() if at < late]
        if done.is_set():
            return
        if silent and asked >= late:
            _end(f"rank {silent[0]} of {size} has given no sign of life for {SILENCE:.0f} s; rank {rank} ends")
        if asked < late:
            _end(f"the ranks' meeting place has been out of reach for {SILENCE:.0f} s; rank {rank} of {size} ends")


def _watch_store(rank: int, size: int, done: threading.Event, beats: list[int]) -> None:
    """End this process where the store does not answer: it lives with one of the ranks, which may be stopped, and knows
    no time limit."""
    last, still = 0, 0.0
    while not done.wait(PERIOD):
        # Counted, not read off a clock, which goes on while this process is stopped itself.
        last, still = beats[0], still + PERIOD if beats[0] == last else 0.0
        if still > SILENCE and not done.is_set():
            _end(f"the ranks' meeting place has not answered for {SILENCE:.0f} s; rank {rank} of {size} ends")


def _end(text: str) -> None:
    print(f"erfscope: {text}; start the run again", file=sys.stderr, flush=True)
    try:
        for say in reversed(before_end):
            say()
    finally:
        sys.stdout.flush()
        os._exit(FAILED)
