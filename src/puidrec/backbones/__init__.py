"""Backbones: representations of users and items whose inner product is the score."""
