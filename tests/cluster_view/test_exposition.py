"""What the processes expose, by the rows of what users of such systems miss; and that the page tells the truth."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agent.world import a_container_grant
from tessera.agent.figures import KEPT_SECONDS, Readings, declare_busy, declare_containers, declare_devices
from tessera.agent.grant import VERSION, ContainerGrant, GrantedDevice
from tessera.agent.layout import Layout
from tessera.agent.running import Running
from tessera.agent.store import ShareStore
from tessera.agent.ticks import Ticker
from tessera.cluster.usage import (
    CONTAINER_PEAK,
    CONTAINER_REFUSED,
    CONTAINER_USED,
    DEVICE_BUSY,
    DEVICE_USED,
    read_pages,
)
from tessera.core.device import Device
from tessera.core.units import MiB
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.clock import ManualClock
from tessera.runtime.metrics import Metrics, Unavailable
from tessera.runtime.nvml import Reading
from tessera.scheduler.meters import Meters, expose_state
from tessera.scheduler.state import State

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text()
CONTAINER_BUSY = "tessera_container_busy_seconds_total"
Series = dict[tuple[str, ...], float]


def series(metrics: Metrics, name: str, *labels: str) -> Series:
    """The values of a metric by these labels; empty where it is absent."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


@pytest.fixture
def store(tmp_path: Path, native: Path) -> ShareStore:
    return ShareStore(Layout(tmp_path / "agent"))


class NextScrape(ManualClock):
    """A clock of which every look is a scrape later than the one before."""

    def monotonic(self) -> float:
        self.looks = getattr(self, "looks", 0.0) + KEPT_SECONDS
        return self.looks


class Everybody:
    """All pods of which there is a share run."""

    def is_over(self, uid: str) -> bool:
        return False

    def has_ended(self, uid: str, container: str, container_id: str) -> bool:
        return False


def exposed(store: ShareStore) -> Metrics:
    metrics = Metrics()
    declare_containers(metrics, Readings(store, Everybody(), NextScrape()), lambda share: "enforced")
    return metrics


def test_row_54_every_container_of_a_pod_has_its_own_series(store: ShareStore) -> None:
    store.put(a_container_grant(container="main", memory=1024))
    store.put(a_container_grant(container="side", memory=512))
    limits = series(
        exposed(store), "tessera_container_memory_limit_bytes", "namespace", "pod", "container", "device"
    )
    assert limits == {
        ("team", "p", "main", "GPU-aaaa"): 1024 * 2**20,
        ("team", "p", "side", "GPU-aaaa"): 512 * 2**20,
    }


def test_row_55_a_share_is_there_with_zero_before_its_first_call(store: ShareStore) -> None:
    """Allocated and idle can be queried: the first scrape after the allocation has the series."""
    metrics = exposed(store)
    assert series(metrics, CONTAINER_USED, "pod") == {}
    store.put(a_container_grant())
    assert series(metrics, CONTAINER_USED, "pod") == {("p",): 0.0}


def test_row_53_a_container_without_a_compute_limit_is_said_to_have_none_and_is_never_zero(
    store: ShareStore,
) -> None:
    """An idle container that has one is 0. The device's own figure knows no limits (row 56)."""
    for container, milli in (("free", 0), ("whole", 1000), ("capped", 300)):
        device = GrantedDevice("GPU-aaaa", 0, 1024, 1024, milli, 100)
        store.put(ContainerGrant(VERSION, "uid", "team", "p", container, 37, (device,), "feed"))
    driver: Any = SimpleNamespace()  # who is on no device asks nothing of it
    ticker = Ticker(driver, Running(store.shares, lambda share: True, driver))
    metrics = Metrics()
    declare_busy(metrics, Readings(store, Everybody(), NextScrape()), ticker.busy_seconds)
    assert series(metrics, CONTAINER_BUSY, "pod", "container") == {("p", "capped"): 0.0}
    assert series(metrics, "tessera_unavailable", "what", "reason") == {(CONTAINER_BUSY, "no compute limit"): 1}


def test_a_share_that_is_gone_is_gone_from_the_next_scrape(store: ShareStore) -> None:
    metrics = exposed(store)
    share = store.put(a_container_grant())
    assert series(metrics, CONTAINER_USED, "pod") == {("p",): 0.0}
    share.region.unlink()
    (share.region.parent / "share.json").unlink()
    assert series(metrics, CONTAINER_USED, "pod") == {}


def test_row_57_one_bad_region_leaves_the_others_in_the_scrape(store: ShareStore) -> None:
    store.put(a_container_grant(container="main"))
    store.put(a_container_grant(container="torn")).region.write_bytes(b"torn")
    metrics = exposed(store)
    assert series(metrics, CONTAINER_USED, "container") == {("main",): 0.0}
    missing = series(metrics, "tessera_unavailable", "what", "reason")
    assert missing[CONTAINER_USED, "region unreadable"] == 1


def devices_exposed(readings: dict[str, Reading]) -> Metrics:
    """An agent's devices whose driver reads this of each."""
    metrics = Metrics()
    found = [Device(uuid, at, "T4", MiB(15_360), "NVIDIA") for at, uuid in enumerate(readings)]
    node: Any = SimpleNamespace(devices=lambda: found, unfit=dict, tier=SimpleNamespace(isolation="hook"))
    machine: Any = SimpleNamespace(reading=readings.__getitem__)
    declare_devices(metrics, node, machine)
    return metrics


def test_rows_56_and_57_what_a_driver_does_not_say_is_absent_with_a_reason_and_spoils_no_other() -> None:
    metrics = devices_exposed({"good": Reading(2**30, 40), "mute": Reading(None, None)})
    assert series(metrics, DEVICE_BUSY, "device") == {("good",): 0.4}
    assert series(metrics, DEVICE_USED, "device") == {("good",): float(2**30)}
    assert series(metrics, "tessera_unavailable", "what", "reason")[DEVICE_BUSY, "driver does not say"] == 1


def test_row_56_an_idle_device_is_zero_and_not_absent() -> None:
    metrics = devices_exposed({"idle": Reading(0, 0)})
    assert series(metrics, DEVICE_BUSY, "device") == {("idle",): 0.0}
    assert series(metrics, "tessera_unavailable", "what") == {}


def test_row_58_pods_per_second_attempts_and_latency_can_be_derived() -> None:
    metrics = Metrics()
    meters = Meters(metrics)
    expose_state(metrics, State(POLICIES[DEFAULT_POLICY]))
    assert series(metrics, "tessera_scheduled_total") == {(): 0.0}, (
        "there before the first pod, or rate() misses it"
    )
    meters.scheduled.inc(3)
    meters.attempts["placed"].inc()
    meters.decision.observe(0.0003)
    meters.e2e.observe(1.5)
    assert series(metrics, "tessera_scheduled_total") == {(): 3.0}
    assert series(metrics, "tessera_attempts_total", "outcome")[("placed",)] == 1.0
    assert series(metrics, "tessera_decision_seconds_bucket", "le")[("0.0004",)] == 1.0
    assert series(metrics, "tessera_e2e_seconds_bucket", "le")[("2.0",)] == 1.0
    assert series(metrics, "tessera_device_allocated_memory_bytes") == {}, "no inventory is not nothing allocated"


def test_a_source_that_is_not_there_is_not_zero() -> None:
    metrics = Metrics()
    metrics.gauge("thing", "A thing.", lambda: Unavailable("not yet"))
    assert series(metrics, "tessera_thing") == {}
    assert series(metrics, "tessera_unavailable", "what", "reason") == {("tessera_thing", "not yet"): 1.0}


# the page


def run_tool(*args: str) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, str(ROOT / "tools/metrics_table.py"), *args]
    return subprocess.run(tool, capture_output=True, text=True, check=False)


def test_the_tables_of_the_page_are_as_the_processes_declare() -> None:
    checked = run_tool("--check")
    assert checked.returncode == 0, checked.stdout


def test_what_the_tool_finds_is_all_that_is_exposed(store: ShareStore) -> None:
    """The table is read from the source; what is really declared must be in it."""
    metrics = Metrics()
    declare_containers(metrics, Readings(store, Everybody(), NextScrape()), lambda share: "")
    Meters(metrics)
    expose_state(metrics, State(POLICIES[DEFAULT_POLICY]))
    rows = dict(re.findall(r"^\| `(tessera_\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    assert {(m.name, m.type) for m in metrics.table()} <= set(rows.items())


RULES = [
    rule
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for group in yaml.safe_load(block)["groups"]
    for rule in group["rules"]
]
QUERIES = [*re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL), *(rule["expr"] for rule in RULES)]


def known_names() -> set[str]:
    names: set[str] = set()
    for name, type_ in re.findall(r"^\| `(tessera_\w+)` \| (\w+) \|", PAGE, re.MULTILINE):
        ends = ("_bucket", "_sum", "_count") if type_ == "histogram" else ("",)
        names |= {name + end for end in ends}
    return names


@pytest.mark.parametrize("query", QUERIES)
def test_queries_and_rules_name_metrics_and_labels_that_there_are(query: str) -> None:
    used = set(re.findall(r"tessera_\w+", query))
    assert used
    assert used <= known_names()


def labels_of(name: str) -> set[str]:
    """The labels that the page gives a metric, and those that a scrape adds."""
    for end in ("", "_bucket", "_sum", "_count"):
        found = re.search(
            rf"^\| `{re.escape(name.removesuffix(end))}` \| \w+ \| [^|]+ \| ([^|]*) \|", PAGE, re.MULTILINE
        )
        if found:
            return {*re.findall(r"`(\w+)`", found[1]), "le", "node", "instance"}
    raise AssertionError(name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_groups_and_says_only_labels_that_its_metric_has(rule: dict[str, Any]) -> None:
    (name,) = set(re.findall(r"tessera_\w+", rule["expr"]))
    grouped = {label for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in re.split(r",\s*", by)}
    assert grouped <= labels_of(name)
    said = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert said <= grouped
    assert {"summary", "action"} == rule["annotations"].keys()
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_top_reads_metrics_that_the_agent_declares(store: ShareStore) -> None:
    metrics, nothing = Metrics(), SimpleNamespace()
    declare_containers(metrics, Readings(store, Everybody(), NextScrape()), lambda share: "")
    declare_devices(metrics, nothing, nothing)  # type: ignore[arg-type]
    read = {CONTAINER_USED, CONTAINER_PEAK, CONTAINER_REFUSED, DEVICE_USED, DEVICE_BUSY}
    assert read <= {m.name for m in metrics.table()}


def test_top_reads_what_a_real_agent_renders(store: ShareStore) -> None:
    store.put(a_container_grant())
    used = read_pages([exposed(store).render().decode()])
    assert used.container(CONTAINER_USED, ("team", "p", "main", "GPU-aaaa")) == 0.0
    assert used.container(CONTAINER_REFUSED, ("team", "p", "main", "GPU-aaaa")) == 0.0
