"""Looking at a cluster, read-only: its devices, who holds them, what waits and why. Changes nothing."""
