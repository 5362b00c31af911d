"""Write the CustomResourceDefinitions of tessera.wire.kube.crds into the chart.

Usage: ``python tools/crds.py --check|--write [DIRECTORY]`` (default: ``charts/tessera/crds``). ``--check`` writes
nothing and exits 1 where a file is missing, different, or there without a kind of its own.
"""

import sys
from pathlib import Path

import yaml

from tessera.wire.kube.crds import crds

PLACE = Path(__file__).parent.parent / "charts" / "tessera" / "crds"
HEAD = "# Written by tools/crds.py from the types in src/tessera/wire/kube: change those, not this.\n"


def files() -> dict[str, str]:
    """File name -> text, for every kind."""
    return {
        f"{crd['spec']['names']['plural']}.yaml": HEAD + yaml.safe_dump(crd, sort_keys=False, width=110)
        for crd in crds()
    }


def stale(place: Path) -> list[str]:
    """The files in ``place`` that are not as they would be written."""
    wanted = files()
    there = {path.name: path.read_text(encoding="utf-8") for path in place.glob("*.yaml")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    """Write or compare; 1 where something differs, 2 for wrong use."""
    if not arguments or arguments[0] not in ("--check", "--write"):
        print(__doc__, file=sys.stderr)
        return 2
    place = Path(arguments[1]) if len(arguments) > 1 else PLACE
    if arguments[0] == "--check":
        different = stale(place)
        print("crds:", f"run tools/crds.py --write ({', '.join(different)})" if different else "as generated")
        return 1 if different else 0
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (place / name).write_text(text, encoding="utf-8")
    for name in stale(place):
        (place / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
