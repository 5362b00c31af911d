"""Talking to a Kubernetes API server: the client port and its adapters, informers, work queues, leases, events."""
