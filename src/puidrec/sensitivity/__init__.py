"""Sensitivity: entropies of exposure, the strength Γ of hidden confounding, and bounds on inverse propensities."""
