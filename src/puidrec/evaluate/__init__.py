"""Evaluation: ranking and pointwise metrics, unbiased estimates, and paired comparisons."""

from puidrec.evaluate.evaluator import Evaluation, evaluate, evaluate_scores

__all__ = ["Evaluation", "evaluate", "evaluate_scores"]
