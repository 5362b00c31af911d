"""``tessera webhook``: turns pods of any dialect into pods that Tessera places, and keeps its own certificate."""
