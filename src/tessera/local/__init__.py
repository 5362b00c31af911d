"""One machine, no cluster: its ledger, its runs, its live view."""
