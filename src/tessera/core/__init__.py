"""The vocabulary of Tessera: values that every other part speaks in. Pure; imports nothing of ours."""
