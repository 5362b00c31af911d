"""The live view of one machine for ``tessera top``; textual is imported here and nowhere else.

What is shown comes from a function that looks, so the view itself knows no driver and no file.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static

from tessera.cli.columns import gib, percent, span
from tessera.core.units import WHOLE, render_percent
from tessera.local.view import DeviceView, MachineView, RunView

_BAR: Final = 10
_DEVICE_HEADER: Final = ("DEVICE", "MODEL", "MEMORY ALLOCATED", "IN USE", "COMPUTE ALLOCATED", "BUSY", "SHARES")
_RUN_HEADER: Final = ("NAME", "STATE", "PID", "USER", "DEVICES", "MEMORY", "LIMIT", "COMPUTE", "REFUSED", "AGE")

SORTS: Final[dict[str, tuple[str, Callable[[RunView], tuple[object, ...]]]]] = {
    "n": ("name", lambda run: (run.name,)),
    "m": ("memory used", lambda run: (-run.memory_used_mib, run.name)),
    "l": ("memory limit", lambda run: (-run.memory_limit_mib, run.name)),
    "c": ("compute", lambda run: (-run.compute_milli, run.name)),
    "d": ("device", lambda run: (tuple(share.index for share in run.devices) or (1 << 16,), run.name)),
    "a": ("age", lambda run: (-run.age_seconds, run.name)),
}
"""By which key the runs are sorted, what it is called, and how."""


def bar(part: int, whole: int, width: int = _BAR) -> str:
    """A bar that is full when ``part`` is ``whole``; anything above nothing shows."""
    filled = min(width, -(-part * width // whole)) if whole else 0
    return "\u2588" * filled + "\u2591" * (width - filled)


def device_row(device: DeviceView) -> tuple[str, ...]:
    """A device as cells."""
    used = device.memory_used_mib
    taken = device.memory_mib if device.exclusive else device.memory_allocated_mib
    return (
        str(device.index),
        device.model,
        f"{bar(taken, device.memory_mib)} {gib(taken)} of {gib(device.memory_mib)}",
        "-" if used is None else gib(used),
        f"{bar(device.compute_allocated_milli, WHOLE)} {render_percent(device.compute_allocated_milli)}",
        "-" if device.busy_percent is None else f"{device.busy_percent}%",
        "whole" if device.exclusive else str(device.shares),
    )


def run_row(run: RunView) -> tuple[str, ...]:
    """A run as cells."""
    return (
        run.name,
        run.state,
        str(run.pid),
        run.user,
        ",".join(str(share.index) for share in run.devices) or "-",
        f"{bar(run.memory_used_mib, run.memory_limit_mib)} {gib(run.memory_used_mib)}",
        gib(run.memory_limit_mib) if run.devices else "-",
        percent(run.compute_milli),
        str(sum(share.refused for share in run.devices)),
        span(run.age_seconds),
    )


class TopApp(App[None]):
    """Devices above, runs below; redrawn at a fixed pace."""

    CSS: ClassVar[str] = """
    #title { padding: 0 1; height: 1; background: $primary-background; text-style: bold; }
    #runs-title { padding: 0 1; height: 1; margin-top: 1; color: $text-muted; }
    DataTable { height: auto; max-height: 45%; }
    #runs { height: 1fr; max-height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        *((key, f"sort('{key}')", name.capitalize()) for key, (name, _) in SORTS.items()),
    ]
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False

    def __init__(self, look: Callable[[], MachineView], seconds: float) -> None:
        super().__init__()
        self._look, self._seconds = look, seconds
        self.sort_key = "d"

    def compose(self) -> ComposeResult:
        """The two tables under a title."""
        yield Static(id="title")
        yield DataTable(id="devices", cursor_type="none")
        yield Static(id="runs-title")
        yield DataTable(id="runs", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        """Draw now, then again and again."""
        self.query_one("#devices", DataTable).add_columns(*_DEVICE_HEADER)
        self.query_one("#runs", DataTable).add_columns(*_RUN_HEADER)
        self.draw()
        self.set_interval(self._seconds, self.draw)

    def action_sort(self, key: str) -> None:
        """Sort the runs by another column, at once."""
        self.sort_key = key
        self.draw()

    def draw(self) -> None:
        """Look, and show what was seen."""
        view = self._look()
        name, by = SORTS[self.sort_key]
        simulated = " (simulated)" if view.simulated else ""
        self.query_one("#title", Static).update(f"{view.machine}{simulated}   driver {view.driver or 'unknown'}")
        self.query_one("#runs-title", Static).update(f"{len(view.runs)} runs, by {name}")
        self._fill("#devices", [device_row(device) for device in view.devices])
        self._fill("#runs", [run_row(run) for run in sorted(view.runs, key=by)])

    def _fill(self, selector: str, rows: Sequence[Sequence[str]]) -> None:
        table = self.query_one(selector, DataTable)
        row, x, y = table.cursor_row, table.scroll_x, table.scroll_y
        table.clear()
        for cells in rows:
            table.add_row(*cells)
        table.move_cursor(row=min(row, max(0, len(rows) - 1)), animate=False)
        table.scroll_to(x, y, animate=False)
