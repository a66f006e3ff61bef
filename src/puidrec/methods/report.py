"""What was estimated on the way to a model: propensity, Γ and what set it, uniform rows; for
metrics and reports."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from puidrec.errors import InputError
from puidrec.losses.signed import DEFAULT_GAMMA, MIN_UNIFORM
from puidrec.methods import GAMMA_SCALE
from puidrec.methods.prepare import Prepared
from puidrec.methods.problem import Fitted
from puidrec.optimise.adam import Progress


def training_report(prepared: Prepared, fitted: Fitted, seconds: float) -> dict[str, Any]:
    """What is worth knowing of one training, in plain values."""
    spec = prepared.settings.spec
    report: dict[str, Any] = {
        "solver": fitted.solver or "closed form",
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "seconds": round(seconds, 3),
    }
    if fitted.unfinished:
        report["not_converged"] = sweep_limit(prepared, fitted)
    if fitted.best_score is not None:
        report["validation"] = fitted.best_score
    if prepared.settings.shrink_to is not None and spec.estimator != "naive":
        report["shrunk_to"] = prepared.settings.shrink_to
    if spec.benchmark:
        report["benchmark"] = "mf" if prepared.settings.benchmark == "mf" else spec.estimator
    if spec.uses_propensity is True:
        report["propensity"] = prepared.log.nominal.propensity.describe()
    if prepared.settings.gamma == "learned" and spec.uncertainty != "none":
        report["gamma_set_by"] = "the posterior mean of spectrum, fitted first with uniform ratings"
    elif calibrates_gamma(prepared):
        report["gamma_set_by"] = gamma_set_by(prepared)
    return report | uniform_use(prepared, fitted) | dict(fitted.notes)


@contextlib.contextmanager
def shown_progress(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What training calls with its progress: a function as given; a bar where one is asked for;
    None shows nothing.

    Left open (None), a notebook shows a bar once a fit has taken a second.
    """
    notebook = _in_notebook()
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool | None):
        found = type(progress).__name__
        raise InputError(
            "progress is no function",
            found=found,
            expected="True, False, or a function of four arguments",
        )
    elif progress is False or (progress is None and not notebook):
        yield None
    elif notebook:
        yield _NotebookBar()
    else:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("training", total=None)
            yield lambda stage, done, total, figures: bar.update(
                task,
                completed=done,
                total=total,
                description=_progress_words(stage, done, total, figures),
            )


class Work:
    """Counts work over all stages: sweeps, epochs and fits of the path done, of those and the most
    that is left.

    A stage that converges before its most sweeps makes the total smaller, so that the last call is
    the end.
    """

    def __init__(self, told: Progress, later: int) -> None:
        self.told, self.before, self.own, self.later = told, 0, 0, later
        self.last: tuple[str, int, int] = ("", 0, 0)

    def begin(self, stage: str, most: Sequence[int]) -> None:
        """A stage begins; most: sweeps of it and of those after it. The last may be a closed form
        that takes long."""
        self.before, self.own, self.later = self.before + self.own, 0, sum(most[1:])
        if len(most) == 1 and self.before:
            self(stage, 0, most[0], {})

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """A step of a stage: `done` of at most `total`; of the path nobody knows how many fits it
        has."""
        self.own = done if total else self.own + 1
        done = self.before + self.own
        self.last = (stage, done, done + max(total - self.own, 0) + self.later)
        self.told(*self.last, figures)

    def end(self) -> None:
        """Nothing is left."""
        stage, done, total = self.last
        if stage and done < total:
            self.told(stage, done, done, {})


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def _progress_words(stage: str, done: int, total: int, figures: dict[str, float]) -> str:
    loss = next(
        (f", loss {value:.4f}" for name, value in figures.items() if name.startswith("loss_")), ""
    )
    return f"{stage}: {done} of {total}{loss}"


class _NotebookBar:
    """An output cell that is rewritten while training goes on; the browser draws the bar."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.due = time.monotonic() + 1.0

    def __call__(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        if time.monotonic() < self.due and not (self.handle is not None and done == total):
            return
        from IPython.display import display

        self.due = time.monotonic() + 0.2
        words = _progress_words(stage, done, total, figures)
        shown = {
            "text/plain": words,
            "text/html": f'<progress max="{total}" value="{done}"></progress> {escape(words)}',
        }
        if self.handle is None:
            self.handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(shown, raw=True)


def sweep_limit(prepared: Prepared, fitted: Fitted) -> str:
    """Which models are not at their optimum, and what to change."""
    names, most = " and ".join(fitted.unfinished), prepared.settings.epochs
    return f"{names} stopped after {most} sweeps before the optimum; raise epochs or l2"


def calibrates_gamma(prepared: Prepared) -> bool:
    """Whether the scale of Γ was left to the data: methods that put a value on unseen ratings,
    unless Γ is given."""
    settings = prepared.settings
    return settings.spec.calibrates_gamma and settings.gamma in ("auto", "certified")


def gamma_set_by(prepared: Prepared) -> str:
    """What set the scale of Γ where the caller did not: uniform ratings, or a default where there
    are too few."""
    rows = prepared.uniform_target().size
    if rows >= MIN_UNIFORM:
        return f"{rows:,} uniform ratings held out for calibration"
    found = (
        "no uniform rating"
        if rows == 0
        else f"only {rows:,} uniform rating{'s' if rows > 1 else ''}"
    )
    return (
        f"the default {DEFAULT_GAMMA:g}: {found} held out for calibration, at least "
        f"{MIN_UNIFORM} are needed"
    )


def uniform_use(prepared: Prepared, fitted: Fitted) -> dict[str, Any]:
    """How uniform rows entered the model, in words, and how many of which part of the split;
    `calibration` is propensity and validation rows together."""
    uses, rows, split = [], {}, prepared.split
    settings, spec = prepared.settings, prepared.settings.spec
    if split.uniform_in_training:
        uses.append("training")
    if spec.weighs_rows(settings) and prepared.log.nominal.propensity.uses_uniform:
        uses.append("propensity")
    gamma, enough = settings.gamma, prepared.uniform_target().size >= MIN_UNIFORM
    calibrates = gamma in ("certified", "learned") or (calibrates_gamma(prepared) and enough)
    if calibrates and spec.uncertainty != "none":
        uses.append(GAMMA_SCALE)
    if spec.uses_uniform not in ("", GAMMA_SCALE):
        uses.append(spec.uses_uniform)
    if uses and split.propensity is not None:
        rows["propensity"] = len(split.propensity)
    chooses = settings.select != "none" and "adam" in fitted.solver
    if chooses and split.selection == "uniform" and len(split.validation):
        uses.append("choice of the epoch")
        rows["validation"] = len(split.validation)
    if gamma == "learned" and spec.uncertainty != "none":
        rows = {"calibration": prepared.calibration_rows().user.size}
    return {"uniform_rows_used": ", ".join(uses) or "none", "uniform_parts": rows}
