"""What our own processes complained of: an error in a log is a violation, and so is an alarm about nothing."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FALSE_HERE: Final = frozenset({"ungated", "isolation absent", "killed", "DeviceOvercommitted"})
"""Messages at which people would act; nothing of the kind happens in a run, as the judge knows better."""


def records(log: Path) -> list[dict[str, Any]]:
    """The lines that a process logged; what is no JSON (a traceback at the end of a process) is an error."""
    found = []
    for line in log.read_text("utf-8", "replace").splitlines() if log.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append({"level": "error", "message": line})
    return found


def alarms(logs: Mapping[str, Path]) -> list[str]:
    """Errors and false alarms by process, equal ones once with their number and the last of them."""
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for name, log in logs.items():
        for record in records(log):
            if record.get("level") in ("error", "critical") or record.get("message") in FALSE_HERE:
                key = (name, str(record["message"]))
                counts[key] += 1
                last[key] = record
    return [
        f"{name}: {what}, {count} times: {json.dumps(last[name, what])[:600]}"
        for (name, what), count in counts.items()
    ]


def warnings(logs: Mapping[str, Path]) -> dict[str, int]:
    """How often which warning was logged."""
    found = (record for log in logs.values() for record in records(log))
    return dict(Counter(str(r["message"]) for r in found if r.get("level") == "warning").most_common())
