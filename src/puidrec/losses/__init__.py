"""Objectives: one formula, one function, exact over all pairs."""
