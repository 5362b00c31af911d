"""Decisions: does it fit, where does it go, why not, who holds what. Pure functions of a snapshot."""
