"""Ways of writing a request on a pod, and which of them a pod is written in."""

from tessera.wire.dialects.registry import read_pod

__all__ = ["read_pod"]
