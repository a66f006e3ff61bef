"""Methods of the field that the paper compares with, or that came after it."""
