"""The node agent: what is on this node, who gets which part of it, and that nobody gets more."""
