"""Reports: results as charts, tables and pages for people."""
