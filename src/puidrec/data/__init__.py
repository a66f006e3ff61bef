"""Data: one immutable `Dataset`, the protocols that split it, the sources that fill it, and a
simulator."""
