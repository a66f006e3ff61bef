"""The paper's tables and figures, run again: one module per question, one table of presets."""
