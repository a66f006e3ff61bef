"""Experiments: computations behind the commands, as plain result objects that reports and the
command line show."""
