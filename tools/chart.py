"""Write the parts of the chart that have their source in the code: admission objects, kube-scheduler.

Usage: ``python tools/chart.py --check|--write [DIRECTORY]`` (default: ``charts/tessera``). ``--check`` writes
nothing and exits 1 where a file is missing or different. What depends on values of the chart is put in as template
text.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tessera.scheduler.stock import Settings, configuration
from tessera.wire.kube.webhooks import Target, webhook_objects

PLACE = Path(__file__).parent.parent / "charts" / "tessera"
HEAD = "# Written by tools/chart.py from {source}: change that, not this.\n"
NAMESPACE, EXCLUDED, LABELS, PROFILE = "@namespace@", "@excluded@", "@labels@", "@profile@"


class _Dumper(yaml.SafeDumper):
    """Long text as a block, in which nothing needs quotes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if len(text) > 80 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _dump(objects: Iterable[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)


def _filled(text: str, chosen: Mapping[str, str]) -> str:
    """The text with every mark replaced; ends the program where one is missing or left."""
    for mark, template in chosen.items():
        if mark not in text:
            raise SystemExit(f"tools/chart.py: {mark} is not there any more")
        text = text.replace(mark, template)
    if left := [mark for mark in (NAMESPACE, EXCLUDED, LABELS, PROFILE) if mark in text]:
        raise SystemExit(f"tools/chart.py: {', '.join(left)} stands in an unexpected place")
    return text


def admission() -> str:
    """The webhook configurations and the policy that protects our records, for any namespace."""
    objects = [dict(one) for one in webhook_objects(Target(namespace=NAMESPACE, excluded=(EXCLUDED,)))]
    for one in objects:
        one["metadata"] = one["metadata"] | {"labels": LABELS}
        for webhook in one.get("webhooks", ()):
            (expression,) = webhook["namespaceSelector"]["matchExpressions"]
            expression["values"] = f"{EXCLUDED} {NAMESPACE}"
    chosen = {
        f"'{LABELS}'": '{{- include "tessera.labels" (dict "root" . "component" "webhook") | nindent 4 }}',
        f"['{EXCLUDED}', '{NAMESPACE}']": '{{ include "tessera.excludedCel" . }}',
        f"namespace: '{NAMESPACE}'": "namespace: {{ .Release.Namespace }}",
        f"'{EXCLUDED} {NAMESPACE}'": '{{ include "tessera.excluded" . }}',
        f"system:serviceaccount:{NAMESPACE}:": "system:serviceaccount:{{ .Release.Namespace }}:",
    }
    return HEAD.format(source="src/tessera/wire/kube/webhooks.py") + _filled(_dump(objects), chosen)


def scheduler() -> str:
    """KubeSchedulerConfiguration of the kube-scheduler beside ours, for any namespace, name and rate."""
    settings = Settings(profiles=(PROFILE,), lease=f"{NAMESPACE}/tessera-scheduler")
    chosen = {
        f"resourceNamespace: '{NAMESPACE}'": "resourceNamespace: {{ .Release.Namespace }}",
        f"schedulerName: '{PROFILE}'": "schedulerName: {{ .Values.scheduler.name }}",
        f"qps: {settings.qps}": "qps: {{ .Values.scheduler.kubeScheduler.qps }}",
        f"burst: {2 * settings.qps}": "burst: {{ mul 2 .Values.scheduler.kubeScheduler.qps }}",
    }
    return HEAD.format(source="src/tessera/scheduler/stock.py") + _filled(_dump([configuration(settings)]), chosen)


def files() -> dict[str, str]:
    """Path in the chart -> text."""
    return {"templates/admission.yaml": admission(), "files/kube-scheduler.yaml": scheduler()}


def stale(place: Path) -> list[str]:
    """The files in ``place`` that are not as they would be written."""
    return [
        name
        for name, text in files().items()
        if not (place / name).exists() or (place / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """Write or compare; 1 where something differs, 2 for wrong use."""
    if not arguments or arguments[0] not in ("--check", "--write"):
        print(__doc__, file=sys.stderr)
        return 2
    place = Path(arguments[1]) if len(arguments) > 1 else PLACE
    if arguments[0] == "--check":
        different = stale(place)
        print("chart:", f"run tools/chart.py --write ({', '.join(different)})" if different else "as generated")
        return 1 if different else 0
    for name, text in files().items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
