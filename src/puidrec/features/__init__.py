"""Features: selection, bins and pseudo-features of users and items."""
