"""Tessera: accelerators pooled, shared and scheduled, on Kubernetes and on single machines."""

__version__ = "0.1.0"
