"""Preferences: which of the legal placements is the best. A policy never changes what is legal."""
