"""Ports of test runs that stand beside each other."""

import os
import subprocess
import sys
from pathlib import Path

from cluster.engine.ports import SHARE, free_port

MORE_THAN_A_SHARE = SHARE + 1
OTHER = """
import sys
from cluster.engine.ports import free_port
print(*(free_port() for _ in range(int(sys.argv[1]))))
"""


def test_two_runs_are_never_given_one_port():
    ours = [free_port() for _ in range(MORE_THAN_A_SHARE)]
    other = subprocess.run(
        [sys.executable, "-c", OTHER, str(MORE_THAN_A_SHARE)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        check=True,
        text=True,
    )
    theirs = [int(word) for word in other.stdout.split()]
    assert len({*ours, *theirs}) == 2 * MORE_THAN_A_SHARE
