"""Recommendations over HTTP: a run folder, answered for. Needs the extra `serve`."""

from __future__ import annotations

from enum import StrEnum


class Unknown(StrEnum):
    """What users and items get that the model does not know and that bring no features."""

    PRIOR = "prior"
    REFUSE = "404"


class Seen(StrEnum):
    """Which rankings leave out what a user rated in training: who sees what is left out learns what
    the user rated."""

    CATALOGUE = "catalogue"
    """Rankings of the whole catalogue; not those of a client's own list, which would tell of each
    item on it."""
    ALWAYS = "always"
    """Also rankings of a client's list of items: for clients that may know what users rated."""
    NEVER = "never"
    """None: the server forgets who rated what as soon as the model is loaded."""
