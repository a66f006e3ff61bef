"""Evaluation: ranking and error metrics, unbiased estimates, and paired comparisons."""

from puidrec.evaluation.evaluator import Evaluation, evaluate, evaluate_scores

__all__ = ["Evaluation", "evaluate", "evaluate_scores"]
