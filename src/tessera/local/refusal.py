"""Why a run has to wait or is refused, and the change of options that would help, in words.

Kept apart from the road of a run that starts: the reasons come from the allocator's arrays, and loading those
takes longer than everything else that such a run does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tessera.allocator.explain import reject, sentence
from tessera.allocator.ledger import Ledger
from tessera.allocator.suggest import Change, Suggestion, suggest
from tessera.core.device import Node
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Reason
from tessera.core.share import MemoryMiB
from tessera.core.units import render_percent
from tessera.local.admit import Declined
from tessera.local.ask import Ask, ask_text, model_hint, share_spec
from tessera.local.book import Run
from tessera.local.words import run_text

_HOLDERS_SHOWN: Final = 12
_CHANGES_SHOWN: Final = 3


def snapshot_of(node: Node, runs: Sequence[Run]) -> Snapshot:
    """The machine with what its runs hold."""
    placements = (run.placement for run in runs if run.placement is not None)
    return Ledger.rebuilt(Fleet([node]), placements).snapshot()


def reasons(declined: Declined) -> list[str]:
    """Why not, each reason with its numbers."""
    if declined.ahead:
        names = ", ".join(run.name for run in declined.ahead)
        return [f"{_count(len(declined.ahead), 'run')} came first and still wait: {names}"]
    rejected = reject(snapshot_of(declined.node, declined.runs), declined.pod)
    shortfalls = [shortfall for group in rejected.groups for shortfall in group.shortfalls]
    said = [sentence(shortfall).replace("another pod", "another run") for shortfall in shortfalls]
    wrong_model = any(shortfall.reason is Reason.MODEL for shortfall in shortfalls)
    hint = model_hint(declined.run.ask.model or "") if wrong_model else ""
    return [*said, hint] if hint else said


def changes(declined: Declined) -> list[str]:
    """Single changes of the options with which it would run now, the least drastic first."""
    if declined.ahead:
        return ["--wait takes a place behind them"]
    found = suggest(snapshot_of(declined.node, declined.runs), declined.pod)
    return [_change_text(declined.run.ask, suggestion) for suggestion in found[:_CHANGES_SHOWN]]


def _memory_option(ask: Ask, value: int) -> str:
    if isinstance(share_spec(ask).memory_request, MemoryMiB):
        return f"--memory {value}Mi"
    return f"--memory {render_percent(value)}"


_OPTIONS: Final[Mapping[Change, Callable[[Ask, int], str]]] = {
    Change.MEMORY: _memory_option,
    Change.COMPUTE: lambda _, value: f"--compute {render_percent(value)}",
    Change.COUNT: lambda _, value: f"--devices {value}",
    Change.SHARING: lambda _, value: f"--memory {render_percent(value)} --compute {render_percent(value)}",
}


def _change_text(ask: Ask, suggestion: Suggestion) -> str:
    option = _OPTIONS.get(suggestion.change)
    if option is not None and suggestion.value is not None:
        return option(ask, suggestion.value)
    return "without --model" if suggestion.change is Change.MODEL else suggestion.text


def holder_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Who holds what now, a line a run; the first dozen."""
    holders = [run for run in runs if not run.waits]
    for run in holders[:_HOLDERS_SHOWN]:
        yield f"{run.name} ({run.user}, pid {run.supervisor.pid}): {run_text(run)}"
    if len(holders) > _HOLDERS_SHOWN:
        yield f"and {len(holders) - _HOLDERS_SHOWN} more (tessera ps)"


def refusal_lines(declined: Declined) -> Iterator[str]:
    """A refusal as a person needs it: what was asked, why not, what would fit, who holds what."""
    yield f"no room for {declined.run.name}: asked for {ask_text(declined.run.ask)}"
    for reason in reasons(declined):
        yield f"  why: {reason}"
    helpful = changes(declined)
    yield f"  would run now: {'; or '.join(helpful)}" if helpful else "  no single change of the options is enough"
    for line in holder_lines(declined.runs):
        yield f"  held: {line}"
    if declined.hopeless:
        yield "  waiting would not help: the machine has no room for it even when it is idle"
    elif not declined.run.ticket and not declined.ahead:
        yield "  --wait waits for a share instead"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
