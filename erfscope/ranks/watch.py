"""Noticing that another rank has died or hangs, while this one computes or waits for it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

#: Seconds between two signs of life, and after how many without one a rank counts as dead.
PERIOD, SILENCE = 2.0, 30.0
#: Exit code: it ran, and there is no result.
FAILED = 3


@contextlib.contextmanager
def watched(store: Store, rank: int, size: int) -> Iterator[None]:
    """Give signs of life in a thread, and end this process where another one's have stopped.

    A collective that waits for a dead process may wait for ever, and nothing but the end of the process gets it out of there.
    """
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(store, rank, size, done), name="erfscope-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(RuntimeError):
            store.set(f"left/{rank}", "yes")


def _watch(store: Store, rank: int, size: int, done: threading.Event) -> None:
    heard = {other: ("", time.monotonic()) for other in range(size) if other != rank}
    asked = time.monotonic()
    beat = 0
    while not done.wait(PERIOD):
        beat += 1
        try:
            store.set(f"beat/{rank}", str(beat))
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


def _end(text: str) -> None:
    print(f"erfscope: {text}; start the run again", file=sys.stderr, flush=True)
    os._exit(FAILED)
