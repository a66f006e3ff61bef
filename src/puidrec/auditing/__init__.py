"""Audits: how strong must hidden confounding be to overturn what a log says of a model?"""
