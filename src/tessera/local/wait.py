"""Wait in the queue: awake when the book changes, and every second for those who died without a word."""

import os
import time
from typing import Final

from tessera.core.device import Node
from tessera.local.admit import Admitted, Answer, Declined, judge, readmit
from tessera.local.book import Book

POLL_SECONDS: Final = 0.1
JITTER_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 1.0


def wait_for(book: Book, node: Node, declined: Declined, seconds: float | None) -> Answer:
    """The share as soon as it is this run's turn, or the last refusal after ``seconds``.

    Whatever ends the waiting without a share (the time, Ctrl-C, an error), the run has left the queue then.
    """
    waiter = _Waiter(book, node, declined, seconds)
    try:
        while isinstance(waiter.answer, Declined) and waiter.sleep():
            waiter.ask()
    finally:
        if isinstance(waiter.answer, Declined):
            with book.change():
                book.remove(declined.run.uid)
    return waiter.answer


class _Waiter:
    def __init__(self, book: Book, node: Node, declined: Declined, seconds: float | None) -> None:
        self._book, self._node, self._uid = book, node, declined.run.uid
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._version = -1
        self.answer: Answer = declined

    def sleep(self) -> bool:
        """Until the book has changed, or for a second; false once the time is over."""
        look = time.monotonic() + LOOK_SECONDS
        while self._book.version() == self._version and time.monotonic() < look:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return False
            time.sleep(POLL_SECONDS + JITTER_SECONDS * os.urandom(1)[0] / 256)  # parts the waiters
        return True

    def ask(self) -> None:
        """Judge without a lock; take it only to be admitted, or for the dead when nothing changed."""
        version = self._book.version()
        changed, self._version = version != self._version, version
        if changed:
            runs = self._book.runs()
            mine = next((run for run in runs if run.uid == self._uid), None)
            if mine is not None and not isinstance(judge(self._node, mine, runs), Admitted):
                return
        self.answer = readmit(self._book, self._node, self._uid)
