"""Evaluation: ranking and pointwise metrics, unbiased estimates, and paired comparisons."""
