"""Chaos: programs of a cluster are killed at seeded moments under load, and a judge reads etcd's own history."""
