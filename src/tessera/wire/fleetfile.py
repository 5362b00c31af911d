"""Fleets as people write them: the YAML file of docs/fleet-file.md, and the shorthand ``4x8xA100-SXM4-80GB``.

Text in, nodes out. A file is checked as a whole: every unknown key, wrong value and repeated name becomes a
Problem with its path, and nodes come out only where there is none. What a file leaves open is decided by rule:
node names and uuids are numbered, so the same text always gives the same fleet.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from tessera.core.device import DEFAULT_SLOTS, SHARED_MODE, Device, Node
from tessera.core.errors import Problem
from tessera.core.units import BYTES_PER_MIB, MiB
from tessera.vendors.models import find_model, nearest_models
from tessera.vendors.registry import MODES, VENDORS, canonical_vendor
from tessera.wire.documents import read_documents
from tessera.wire.quantity import Malformed, parse_quantity, quantity_text
from tessera.wire.strict import (
    Field,
    Report,
    dns_name,
    exactly,
    flag,
    listed,
    read_mapping,
    strings,
    whole,
    word,
)

API_VERSION: Final = "tessera.dev/v1"
KIND: Final = "Fleet"
DEFAULT_VENDOR: Final = VENDORS[0].name

MOST_NODES: Final = 100_000
MOST_DEVICES: Final = 1024
MOST_IN_ALL: Final = 1_000_000
MOST_MIB: Final = 2**30
MOST_MILLI: Final = 10**9


@dataclass(frozen=True, slots=True)
class FleetInput:
    """Nodes with what had to be assumed about them, or everything that is wrong with what was written."""

    nodes: tuple[Node, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A device model as this fleet means it; ``name`` is what rules about models are matched against."""

    name: str
    memory_mib: MiB
    milli_tflops: int | None
    vendor: str = DEFAULT_VENDOR


def _quantity(value: object) -> Fraction:
    text = quantity_text(value)
    amount = text if isinstance(text, Malformed) else parse_quantity(text)
    if isinstance(amount, Malformed):
        raise ValueError(amount.message)
    return amount


def _memory(value: object) -> MiB:
    """Bytes in MiB, rounded down: a device has no more than it says."""
    mib = _quantity(value) // BYTES_PER_MIB
    if not 1 <= mib <= MOST_MIB:
        raise ValueError("is less than 1 MiB" if mib < 1 else "is more than 1 PiB")
    return MiB(mib)


def _cpu(value: object) -> int:
    milli = int(_quantity(value) * 1000)
    if not 1 <= milli <= MOST_MILLI:
        raise ValueError("is less than 1m" if milli < 1 else "is more than a million cores")
    return milli


def _tflops(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("is not a number")
    if not 0 < value <= MOST_MILLI // 1000:
        raise ValueError("is not more than 0 (or is beyond any device)")
    return max(1, round(value * 1000))


def _numa(value: object) -> int | list[int]:
    number = whole(0, MOST_DEVICES)
    return [int(number(item)) for item in value] if isinstance(value, list) else int(number(value))


def _uuids(value: object) -> list[str]:
    return [word(item) for item in value] if isinstance(value, list) else [word(value)]


def _vendor(value: object) -> str:
    name = canonical_vendor(word(value))
    if name is None:
        raise ValueError("is not a known vendor")
    return name


def _mode(value: object) -> str:
    if word(value) not in MODES:
        raise ValueError("is not a known mode of a device")
    return word(value)


_MEMORY_REMEDY: Final = "write an amount with its unit, such as 80Gi"
_FLAG_REMEDY: Final = "write true or false"

FLEET_FIELDS: Final[Mapping[str, Field]] = {
    "apiVersion": Field(exactly(API_VERSION), f"write {API_VERSION}", required=True),
    "kind": Field(exactly(KIND), f"write {KIND}", required=True),
    "models": Field(listed, "list models, or leave the key out"),
    "nodes": Field(listed, "list at least one node", required=True),
}
MODEL_FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(word, "write the model's name", required=True),
    "memory": Field(_memory, _MEMORY_REMEDY),
    "tflops": Field(_tflops, "write the TFLOPS of dense FP16 as a number, such as 312"),
    "vendor": Field(_vendor, f"write the vendor's name, such as {DEFAULT_VENDOR}"),
}
NODE_FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(dns_name, "write a name such as gpu-a", required=True),
    "count": Field(whole(1, MOST_NODES), "write how many such nodes there are, 1 or more"),
    "cpu": Field(_cpu, "write cores such as 96, or milli-cores such as 96000m"),
    "memory": Field(_memory, "write an amount with its unit, such as 768Gi"),
    "pods": Field(whole(1, MOST_NODES), "write how many pods the node takes, such as 110"),
    "labels": Field(strings, "write strings only, in quotes where YAML would read them otherwise"),
    "cordoned": Field(flag, _FLAG_REMEDY),
    "devices": Field(listed, "list devices, or leave the key out for a node without any"),
}
DEVICE_FIELDS: Final[Mapping[str, Field]] = {
    "model": Field(word, "write the model's name, such as A100-SXM4-80GB", required=True),
    "count": Field(whole(1, MOST_DEVICES), "write how many such devices the node has, 1 or more"),
    "memory": Field(_memory, _MEMORY_REMEDY),
    "slots": Field(whole(1, MOST_NODES), "write how many shares a device may carry, 1 or more"),
    "numa": Field(_numa, "write a NUMA node's number, or a list with one for each device"),
    "uuid": Field(_uuids, "write a string, or a list with one for each device"),
    "index": Field(whole(0, MOST_DEVICES), "write the index of the first of these devices, 0 or more"),
    "healthy": Field(flag, _FLAG_REMEDY),
    "cordoned": Field(flag, _FLAG_REMEDY),
    "mode": Field(_mode, f"write one of {', '.join(sorted(MODES))}"),
    "vendor": Field(_vendor, f"write the vendor's name, such as {DEFAULT_VENDOR}"),
}


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is known while a file is read: where problems go, its models, and the names given so far."""

    report: Report
    models: dict[str, Model] = field(default_factory=dict)
    node_paths: dict[str, str] = field(default_factory=dict)
    uuid_paths: dict[str, str] = field(default_factory=dict)


def read_fleet(source: str, text: str) -> FleetInput:
    """The nodes of a fleet file, or all of its problems."""
    documents, broken = read_documents(source, text)
    if broken:
        return FleetInput(problems=broken)
    if len(documents) != 1:
        message = f"holds {len(documents)} documents" if documents else "is empty"
        remedy = f"write one document of kind {KIND}"
        return FleetInput(problems=(Problem(source, "", "", "", message, remedy),))
    problems: list[Problem] = []
    reading, document = _Reading(Report(source, "", problems)), documents[0].raw
    top = read_mapping(reading.report, "", document, FLEET_FIELDS)
    for row, entry in enumerate(top.get("models", ())):
        _read_model(reading, f"models[{row}]", entry)
    nodes: list[Node] = []
    for row, entry in enumerate(top.get("nodes", ())):
        nodes.extend(_read_nodes(reading, f"nodes[{row}]", entry, room=MOST_IN_ALL - _size(nodes)))
    return FleetInput(problems=tuple(problems)) if problems else FleetInput(tuple(nodes))


def _size(nodes: Sequence[Node]) -> int:
    return sum(len(node.devices) for node in nodes)


def _read_model(reading: _Reading, path: str, entry: object) -> None:
    found = read_mapping(reading.report, path, entry, MODEL_FIELDS)
    name = found.get("name")
    if name is None:
        return
    if name in reading.models:
        reading.report.add(f"{path}.name", name, "is there twice", "keep one entry for each model")
    known = find_model(name)
    memory = found.get("memory") or (known.memory_mib if known else None)
    if memory is None:
        if _written(entry, "memory") is None:
            reading.report.add(f"{path}.memory", None, "is missing for a model unknown here", _MEMORY_REMEDY)
        # Reported; the name stays known so that devices of it are not reported as well.
        memory = MiB(1)
    tflops = found.get("tflops") or (known.milli_tflops if known else None)
    vendor = found.get("vendor") or (known.vendor if known else DEFAULT_VENDOR)
    reading.models[name] = Model(name, memory, tflops, vendor)


def _read_nodes(reading: _Reading, path: str, entry: object, *, room: int) -> Iterator[Node]:
    found = read_mapping(reading.report, path, entry, NODE_FIELDS)
    count = found.get("count", 1)
    entries = found.get("devices", ())
    groups = [_read_devices(reading, f"{path}.devices[{row}]", item) for row, item in enumerate(entries)]
    if count * sum(group.get("count", 1) for group in groups) > room:
        reading.report.add(path, None, f"makes more than {MOST_IN_ALL:,} devices in all", "ask for fewer")
        return
    if "name" not in found:
        return
    for name in _numbered(found["name"], count if "count" in found else None):
        yield _node(reading, path, name, found, groups)


def _numbered(name: str, count: int | None) -> Iterator[str]:
    """``name`` itself, or ``name-00`` up to ``count`` of them with as many digits as the last one needs."""
    if count is None:
        yield name
        return
    digits = len(str(count - 1))
    for number in range(count):
        yield f"{name}-{number:0{digits}}"


def _node(
    reading: _Reading, path: str, name: str, found: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> Node:
    _claim_name(reading, reading.node_paths, f"{path}.name", name, "node name")
    devices: list[Device] = []
    for row, group in enumerate(groups):
        first = max((device.index for device in devices), default=-1) + 1
        devices.extend(_devices(reading, f"{path}.devices[{row}]", name, group, first))
    _check_indices(reading, f"{path}.devices", devices)
    return Node(
        name=name,
        devices=tuple(devices),
        cpu_milli=found.get("cpu"),
        memory_mib=found.get("memory"),
        max_pods=found.get("pods"),
        cordoned=found.get("cordoned", False),
        labels={"kubernetes.io/hostname": name, **found.get("labels", {})},
    )


def _read_devices(reading: _Reading, path: str, entry: object) -> dict[str, Any]:
    """One entry of a node's ``devices`` with its model resolved; without ``model`` where that failed."""
    found = read_mapping(reading.report, path, entry, DEVICE_FIELDS)
    count = found.get("count", 1)
    for key in ("numa", "uuid"):
        values = found.get(key)
        if isinstance(values, list) and len(values) != count:
            message = f"lists {len(values)} for {count} device{'s' * (count != 1)}"
            reading.report.add(f"{path}.{key}", _written(entry, key), message, "list one for each device")
            del found[key]
    name = found.pop("model", None)
    if name is None:
        return found
    model = reading.models.get(name) or _known(name)
    if model is None and _written(entry, "memory") is None:
        near = nearest_models(name, 1)
        hint = f"did you mean {near[0]!r}? If not, give" if near else "give"
        remedy = f"{hint} its memory with it"
        reading.report.add(_at(path, "model"), name, "is a model unknown here and without memory", remedy)
        return found
    if model is not None:
        found.setdefault("memory", model.memory_mib)
    found["model"], found["known"] = model.name if model else name, model
    return found


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _written(entry: object, key: str) -> object:
    """What stands at ``key`` of an entry as written; ``None`` where nothing does."""
    return entry.get(key) if isinstance(entry, Mapping) else None


def _known(name: str) -> Model | None:
    known = find_model(name)
    return Model(known.name, known.memory_mib, known.milli_tflops, known.vendor) if known else None


def _devices(reading: _Reading, path: str, node: str, group: Mapping[str, Any], first: int) -> Iterator[Device]:
    """The devices of one entry on one node; none where the entry was wrong."""
    if "model" not in group:
        return
    known: Model | None = group["known"]
    count, numa, uuids = group.get("count", 1), group.get("numa"), group.get("uuid")
    for offset in range(count):
        index = group.get("index", first) + offset
        uuid = uuids[offset] if uuids else f"GPU-{node}-{index}"
        _claim_name(reading, reading.uuid_paths, f"{path}.uuid", uuid, "uuid")
        yield Device(
            uuid=uuid,
            index=index,
            model=group["model"],
            memory_mib=group.get("memory", MiB(1)),
            vendor=group.get("vendor") or (known.vendor if known else DEFAULT_VENDOR),
            slots=group.get("slots", DEFAULT_SLOTS),
            numa=numa[offset] if isinstance(numa, list) else numa,
            healthy=group.get("healthy", True),
            cordoned=group.get("cordoned", False),
            mode=group.get("mode", SHARED_MODE),
            milli_tflops=known.milli_tflops if known else None,
        )


def _claim_name(reading: _Reading, taken: dict[str, str], path: str, name: str, what: str) -> None:
    """Report ``name`` where an entry before this one (or this one's other copies) has it already."""
    if name in taken:
        remedy = f"give each its own, or leave the {what} out" if what == "uuid" else "give each its own"
        reading.report.add(path, name, f"is the {what} of {taken[name]} too", remedy)
    taken.setdefault(name, path)


def _check_indices(reading: _Reading, path: str, devices: Sequence[Device]) -> None:
    indices = [device.index for device in devices]
    for index in sorted({index for index in indices if indices.count(index) > 1}):
        reading.report.add(path, index, "is the index of two devices", "give each entry its own first index")


_GROUP: Final = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<devices>\d+)x(?P<model>[^:]+)(?::(?P<memory>.+))?")
_SHORT_FIELDS: Final[Mapping[str, Field]] = {
    "nodes": Field(whole(1, MOST_NODES), "write how many nodes there are, 1 or more"),
}
_SHORT_REMEDY: Final = "write NODESxDEVICESxMODEL, such as 4x8xA100-SXM4-80GB, or DEVICESxMODEL, such as 8xT4"


def is_shorthand(text: str) -> bool:
    """Whether ``text`` starts as the shorthand does, so that what is wrong with it is wrong with that."""
    return re.match(r"\d+x", text) is not None


def read_shorthand(source: str, text: str) -> FleetInput:
    """Nodes ``node-0``, ``node-1``... of groups ``[NODESx]DEVICESxMODEL[:MEMORY]``, joined by ``+`` or ``,``."""
    problems: list[Problem] = []
    groups = [group.strip() for group in re.split(r"[,+]", text)]
    read = [_read_group(Report(source, group, problems), group) for group in groups]
    total = sum(count * group.get("count", 1) for count, group in read)
    if total > MOST_IN_ALL:
        Report(source, text, problems).add("", None, f"makes more than {MOST_IN_ALL:,} devices", "ask for fewer")
    if problems:
        return FleetInput(problems=tuple(problems))
    kinds = [group for count, group in read for _ in range(count)]
    reading, digits = _Reading(Report(source, text, problems)), len(str(len(kinds) - 1))
    return FleetInput(
        tuple(_node(reading, "", f"node-{row:0{digits}}", {}, [group]) for row, group in enumerate(kinds))
    )


def _read_group(report: Report, text: str) -> tuple[int, dict[str, Any]]:
    """How many nodes a group of the shorthand has, and the devices of each."""
    match = _GROUP.fullmatch(text)
    if match is None:
        report.add("", None, "is not a fleet in short", _SHORT_REMEDY)
        return 0, {}
    nodes = read_mapping(report, "", {"nodes": int(match["nodes"] or 1)}, _SHORT_FIELDS)
    entry = {"model": match["model"].strip(), "count": int(match["devices"]), "memory": match["memory"]}
    return nodes.get("nodes", 0), _read_devices(_Reading(report), "", entry)
