"""The command line: one module per verb, each parse -> call -> render."""
