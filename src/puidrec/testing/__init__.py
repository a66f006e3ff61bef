"""Contract tests that a plug-in subclasses."""
