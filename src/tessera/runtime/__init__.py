"""Shared I/O: files, device discovery, settings. Everything above this line in the layering is pure."""
