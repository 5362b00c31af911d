"""Draw docs/demo.svg: what the demo prints, as a terminal shows it.

Usage: ``python tools/picture.py``. Runs the commands for real on simulated devices in a state folder of its own,
so the picture shows what the program does now. The SVG names no font to be fetched.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}">
<style>{styles} .{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
font-size: {char_height}px; line-height: {line_height}px; }}</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
<rect width="100%" height="100%" rx="8" fill="#10141a"/>
<g transform="translate(12, 8)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def shown(arguments: list[str]) -> str:
    """A prompt with the command, and what it printed."""
    command = [str(Path(sys.executable).with_name("tessera")), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"$ tessera {' '.join(arguments)}\n{run.stderr}{run.stdout}"


def scene() -> str:
    """The commands of the picture, one after another."""
    tenant = ["--", "python3", "examples/tenant.py", "fill"]
    return "\n".join(
        [
            shown(["plan", "-f", "examples/picture.yaml", "--fleet", "2x2xA100-SXM4-80GB,1x4xT4"]),
            shown(["run", "--simulate", "1xA100-SXM4-80GB", "--memory", "8Gi", *tenant]),
        ]
    )


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as state:
        os.environ["TESSERA_STATE_DIR"] = state
        text = scene()
    width = max(map(len, text.splitlines())) + 2
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for line in text.splitlines():
        style = (
            "bold #7ee787" if line.startswith("$") else "bold #ffa657" if "reject" in line.lower() else "#c9d1d9"
        )
        console.print(Text(line, style=style))
    svg = console.export_svg(title="", code_format=FORMAT, unique_id="tessera")
    height = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)
    assert height is not None, "the format above has a viewBox"
    svg = svg.replace(f' {height[1]}"', f' {float(height[1]) + 24}"', 1)
    (ROOT / "docs/demo.svg").write_text(re.sub(r"\n\s*\n", "\n", svg), encoding="utf-8")


if __name__ == "__main__":
    main()
