"""The live view, driven by keys. It has no clock of its own here: it draws when it starts and when it is told."""

import asyncio

from textual.widgets import DataTable

from tessera.cli.live import SORTS, TopApp, bar
from tessera.local.view import DeviceView, MachineView, RunView, ShareView, State


def a_run(name: str, *, used: int, limit: int, compute: int, device: int, age: float) -> RunView:
    share = ShareView(device, f"GPU-{device}", "T4", limit, used, used, compute, compute, 0, exclusive=False)
    return RunView(name, name, State.RUNNING, "me", 1, 2, age, ("c",), "1xT4", True, (share,), ())


RUNS = (
    a_run("a", used=1, limit=300, compute=20, device=1, age=5),
    a_run("b", used=3, limit=200, compute=10, device=2, age=9),
    a_run("c", used=2, limit=100, compute=30, device=0, age=7),
)
DEVICE = DeviceView(0, "GPU-0", "Tesla T4", 16384, 8192, 8192, 4096, 50, 300, 2, False, 0, True)
VIEW = MachineView("1xT4", True, "580", (DEVICE,), (), RUNS)
ORDER = {"n": "abc", "m": "bca", "l": "abc", "c": "cab", "d": "cab", "a": "bca"}


def _names(app: TopApp) -> str:
    table = app.query_one("#runs", DataTable)
    return "".join(str(table.get_row_at(row)[0]) for row in range(table.row_count))


def test_each_key_sorts_by_its_column_and_q_ends() -> None:
    async def drive() -> dict[str, str]:
        app = TopApp(lambda: VIEW, seconds=3600)
        seen = {}
        async with app.run_test(size=(140, 30)) as pilot:
            for key in SORTS:
                await pilot.press(key)
                seen[key] = _names(app)
            await pilot.press("q")
        assert app.return_code == 0
        return seen

    assert asyncio.run(drive()) == ORDER


def test_it_shows_devices_and_says_simulated() -> None:
    async def drive() -> tuple[list[object], str]:
        app = TopApp(lambda: VIEW, seconds=3600)
        async with app.run_test(size=(140, 30)):
            row = app.query_one("#devices", DataTable).get_row_at(0)
            return row, str(app.query_one("#title").render())

    row, title = asyncio.run(drive())
    assert row == ["0", "Tesla T4", "█████░░░░░ 8Gi of 16Gi", "4Gi", "███░░░░░░░ 30%", "50%", "2"]
    assert "(simulated)" in title


def test_a_look_with_fewer_runs_shows_fewer() -> None:
    views = [VIEW, MachineView("1xT4", True, "580", (DEVICE,), (), RUNS[:1])]

    async def drive() -> tuple[str, str]:
        app = TopApp(lambda: views[0], seconds=3600)
        async with app.run_test(size=(140, 30)):
            before = _names(app)
            views.pop(0)
            app.draw()
            return before, _names(app)

    assert asyncio.run(drive()) == ("cab", "a")


def test_a_bar_is_empty_at_nothing_and_full_only_at_the_whole() -> None:
    assert bar(0, 10) == "░" * 10
    assert bar(1, 1000) == "█" + "░" * 9, "something shows"
    assert bar(10, 10) == bar(11, 10) == "█" * 10
    assert bar(1, 0) == "░" * 10
