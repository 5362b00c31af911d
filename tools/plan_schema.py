"""Write docs/plan.schema.json from the shapes in tessera.wire.planfile; ``--check`` only compares."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from tessera.wire.planfile import API_VERSION, Plan

PLACE = Path(__file__).parent.parent / "docs" / "plan.schema.json"


def schema() -> dict[str, Any]:
    """The JSON schema of a plan."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Plan ({API_VERSION})",
        **msgspec.json.schema(Plan),
    }


def main() -> int:
    """Write or compare the file; 1 where it differs."""
    text = json.dumps(schema(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        same = PLACE.exists() and PLACE.read_text(encoding="utf-8") == text
        print("docs/plan.schema.json is", "as generated" if same else "not as generated: run tools/plan_schema.py")
        return 0 if same else 1
    PLACE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
