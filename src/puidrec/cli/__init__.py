"""The command line: a thin skin; nothing imports it."""
