"""Evaluation: ranking and error metrics, unbiased estimates, and paired comparisons."""

from puidrec.evaluation.evaluator import evaluate, evaluate_scores
from puidrec.evaluation.result import Evaluation

__all__ = ["Evaluation", "evaluate", "evaluate_scores"]
