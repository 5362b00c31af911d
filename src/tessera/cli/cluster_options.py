"""The options by which a command is told its cluster, with kubectl's names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option("--context", default="", metavar="NAME", help="The kubeconfig's context to use."),
        click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="PATH",
                     help="The kubeconfig [default: $KUBECONFIG, ~/.kube/config, a pod's own account]."),
    ):  # fmt: skip
        command = option(command)
    return command
