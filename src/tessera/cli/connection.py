"""Which cluster a command looks at, as kubectl's users name it, and one call to it from start to end."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig, load_config

T = TypeVar("T")

_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"


def config_of(kubeconfig: Path | None, context: str) -> ClusterConfig:
    """The cluster that is meant. Raises :class:`InputErrors`.

    As with kubectl, a kubeconfig goes before the account of the pod that we may run in.
    """
    return load_config(kubeconfig, environment(os.environ, context), context=context)


def environment(environ: Mapping[str, str], context: str) -> Mapping[str, str]:
    """``environ`` without a pod's own account where a kubeconfig is there, or must be for its context."""
    named = environ.get("KUBECONFIG") or (Path(environ.get("HOME", "/")) / ".kube/config").exists()
    if named or context:
        return {name: value for name, value in environ.items() if name != _IN_CLUSTER}
    return environ


def ask(config: ClusterConfig, question: Callable[[ApiClient], Awaitable[T]]) -> T:
    """The answer of one conversation with the API server, which is closed afterwards.

    A look makes objects by the hundred thousand and no cycles: looking for those would take longer than the look.
    """

    async def talk() -> T:
        client = ApiClient(config)
        try:
            return await question(client)
        finally:
            await client.close()

    gc.disable()
    try:
        return asyncio.run(talk())
    finally:
        gc.enable()
