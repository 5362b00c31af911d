"""All runs of a study, in one process or several, each run once: what an earlier call finished is kept.

The unit of going on is a run: one that was interrupted starts anew, and comes to the same end.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tessera import __version__
from tessera.runtime.kernel import compiled_looker
from tessera.simulator.engine import Rules
from tessera.simulator.files import Done, folder_of, save_run, saved_run
from tessera.simulator.one import simulated
from tessera.simulator.study import Study

Progress = Callable[[int], None]
"""Called with how many more arrivals are through."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A study, where its files go, and ``digest`` of the files that it was read from."""

    study: Study
    out: Path
    digest: str

    def key(self, rules: Rules) -> str:
        """What the outcome of a run hangs on; equal keys have equal files."""
        study = self.study
        facts = (__version__, self.digest, rules, study.arrivals, study.load, study.lifetimes, study.failures)
        return sha256(repr((*facts, study.sequence is not None, self.folder(rules))).encode()).hexdigest()

    def folder(self, rules: Rules) -> str:
        """Where the files of a run lie, relative to ``out``."""
        alone = len(self.study.policies) == len(self.study.seeds) == 1
        return folder_of(rules.policy, rules.seed, alone=alone)

    def perform(self, rules: Rules, progress: Progress | None = None) -> Done:
        """One run, saved."""
        parts = self.study.parts(rules.seed, compiled_looker())
        told = 0

        def tick(through: int) -> None:
            nonlocal told
            if progress is not None:
                progress(through - told)
                told = through

        outcome = simulated(parts, rules, tick=tick)
        tick(len(parts.stream.pods))
        return save_run(self.out, self.folder(rules), outcome, self.key(rules))


def all_runs(batch: Batch, jobs: int, progress: Progress) -> tuple[Done, ...]:
    """Every run of the study in its order; those that are saved already are taken from there."""
    wanted = list(batch.study.runs())
    done = {rules: saved_run(batch.out, rules.policy, rules.seed, batch.key(rules)) for rules in wanted}
    missing = [rules for rules in wanted if done[rules] is None]
    for found in done.values():
        if found is not None:
            progress(found.run.arrived)
    performed = _in_turn(batch, missing, progress) if min(jobs, len(missing)) <= 1 else None
    for rules, found in performed or _at_once(batch, missing, min(jobs, len(missing)), progress):
        done[rules] = found
    return tuple(found for rules in wanted if (found := done[rules]) is not None)


def _in_turn(batch: Batch, missing: Sequence[Rules], progress: Progress) -> Iterator[tuple[Rules, Done]]:
    for rules in missing:
        yield rules, batch.perform(rules, progress)


def _at_once(
    batch: Batch, missing: Sequence[Rules], jobs: int, progress: Progress
) -> Iterator[tuple[Rules, Done]]:
    """The runs in ``jobs`` processes; where this one is interrupted they end with it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin, initargs=(batch,)) as pool:
        waiting: dict[Future[Done], Rules] = {pool.submit(_perform, rules): rules for rules in missing}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    found = future.result()
                    progress(found.run.arrived)
                    yield waiting.pop(future), found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_batch: list[Batch] = []
"""The batch that a worker process was started with."""


def _begin(batch: Batch) -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _batch.append(batch)


def _perform(rules: Rules) -> Done:
    return _batch[0].perform(rules)
