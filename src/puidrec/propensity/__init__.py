"""Propensities: how likely a pair is to be observed, given what was recorded."""
