"""A model card: what a model was trained on, how, under which assumptions, how good it is, and what
an audit found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from puidrec.errors import one_line
from puidrec.methods.table import SIGNED, MethodSpec
from puidrec.report.formatting import show

if TYPE_CHECKING:
    from puidrec.auditing.result import Audit
    from puidrec.data.dataset import Dataset
    from puidrec.data.split import Split
    from puidrec.evaluation import Evaluation
    from puidrec.model import Recommender

NO_AUDIT = (
    "No audit was made. `puid audit RUN --against OTHER` asks how strong hidden confounding would have to be to change "
    "a comparison."
)
CHOSEN = "The test rows were chosen by users, like the log: figures share its selection bias and hidden confounding."


def model_card(
    model: Recommender,
    data: Dataset | None,
    split: Split | None,
    evaluation: Evaluation | None,
    audit: Audit | None,
) -> str:
    """The card as Markdown; parts that nothing is known of say so."""
    method = model.settings.method
    title = f"# Model card: {method}" + (f" on {_plain(data.name)}" if data is not None else "")
    parts = {
        "Data": _bullets(_data(model, data, split)),
        "Method": _bullets(_method(model)),
        "Assumptions": "\n".join(
            f"* {words}" for words in assumptions(model.settings.spec, model.settings.adjusts)
        ),
        "Metrics": _metrics(split, evaluation),
        "Audit": NO_AUDIT if audit is None else _audit(audit),
    }
    return f"{title}\n" + "".join(f"\n## {name}\n\n{text}\n" for name, text in parts.items())


def assumptions(spec: MethodSpec, adjusts: bool = False) -> Iterator[str]:
    """What must hold for the method to do what it promises, read from its row of the table."""
    weighs = adjusts if spec.uses_propensity == "without ids" else spec.uses_propensity
    if weighs:
        yield "Propensities are right up to what is hidden: rows of the log are weighted by their inverse."
    if spec.uncertainty == "none":
        if spec.uses_uniform:
            yield f"The uniform ratings were drawn at random; they decide: {spec.uses_uniform}."
        elif not spec.needs_levels:
            yield "A pair that is not in the log counts as disliked, whether or not the user ever saw it."
        elif weighs:
            yield "Nothing hidden drives both what users rate and how: what is recorded explains the choice."
        else:
            yield "The log is taken as a fair sample of all pairs: selection and hidden confounding are not corrected."
        return
    kind = "one Γ for all pairs" if spec.uncertainty == "global" else "a Γ for each user and item"
    yield f"Hidden causes change the odds that a pair is in the log by at most Γ ({kind})."
    if spec.build == SIGNED:
        yield "Users pick what they like: unseen ratings are lower than logged ones, by as much as Γ allows."
    else:
        yield "Training is for the worst weights within Γ" + (
            ", against a frozen benchmark." if spec.benchmark else "."
        )


def _data(
    model: Recommender, data: Dataset | None, split: Split | None
) -> Iterator[tuple[str, object]]:
    users, items, rows = len(model.user_ids_), len(model.item_ids_), model.seen_[1].size
    yield "size", f"{users:,} users × {items:,} items"
    yield "training rows", f"{rows:,} ({rows / (users * items):.2%} of all pairs)"
    yield "ratings", str(model.rating_scale_)
    if split is not None:
        yield "protocol", f"{split.protocol.name}: {split.protocol.description}; seed {split.seed}"
    if data is not None:
        yield "logged rows", len(data.logged)
        yield "likes only", data.positives_only
        yield "uniform rows", 0 if data.uniform is None else len(data.uniform)
        yield "uniform rows in the log", str(data.overlap) or None
        named = (("users", data.users), ("items", data.items))
        features = [
            f"{name}: {', '.join(t.columns[1:])}"
            for name, t in named
            if t is not None and t.width > 1
        ]
        yield "features", "; ".join(features) or "none"
        yield "SHA-256", data.sha256


def _method(model: Recommender) -> Iterator[tuple[str, object]]:
    settings, report = model.settings, model.report_
    yield settings.method, settings.spec.description
    yield "needs", settings.spec.needs
    given = settings.given("seed")
    yield "settings", ", ".join(f"{key} = {value}" for key, value in given.items()) or "defaults"
    yield "seed", settings.seed
    yield "trained by", f"{report.get('solver')}, {report.get('epochs')} epochs"
    yield "propensity", report.get("propensity")
    gamma = report.get("gamma")
    yield (
        "Γ",
        None
        if not isinstance(gamma, dict)
        else ", ".join(f"{k} {show(v, '.3g')}" for k, v in gamma.items()),
    )
    yield "Γ set by", report.get("gamma_set_by")
    yield "uniform rows used for", report.get("uniform_rows_used")


def _metrics(split: Split | None, evaluation: Evaluation | None) -> str:
    """Values with intervals over users, and what they were measured on."""
    if evaluation is None:
        return "Not measured here; `pr.evaluate(model, …)` measures, and `to_card(evaluation=…)` shows."
    lines = ["| metric | test | 95 % over users |", "| --- | --- | --- |"]
    for name, value in evaluation.items():
        known = name in evaluation.per_user and len(evaluation.per_user[name])
        band = evaluation.interval(name) if known else None
        ends = "" if band is None else f"{show(band.low, '.4f')} … {show(band.high, '.4f')}"
        lines.append(f"| {name} | {show(value, '.4f')} | {ends} |")
    kind = "" if split is None else f" {split.evaluation}"
    rows = f"{evaluation.n_rows:,}{kind} test rows of {evaluation.n_users:,} users, {evaluation.positive_rate:.1%} liked."
    lines += ["", f"{rows} The intervals hold for this one training: its noise is not in them."]
    return "\n".join(
        lines + ([CHOSEN] if split is not None and split.evaluation == "logged" else [])
    )


def _audit(audit: Audit) -> str:
    """The verdict in words, then by metric, with what it was judged by."""
    from puidrec.auditing.result import SOURCES

    values, leads = audit.parts, list(audit.leads.values())
    words, rows = _plain(audit.sentence), values["rows"]
    lines = [words if audit.verdict == "single" else f"**{audit.verdict}**: {words}", ""]
    if leads:
        lines += ["| lead in | verdict | Γ* | 95 % over users |", "| --- | --- | --- | --- |"]
        for lead in leads:
            ends = (
                ""
                if lead.interval is None
                else " … ".join(show(end, ".3g") for end in lead.interval)
            )
            star = "" if lead.tipping_point is None else show(lead.tipping_point, ".3g")
            lines.append(f"| {lead.metric} | {lead.verdict} | {star} | {ends} |")
        lines.append("")
    judged = f"{rows['n']:,} {SOURCES[rows['source']]} rows of {_plain(values['data']['name'])}"
    return "\n".join([*lines, f"Judged by {judged}, SHA-256 {values['data']['sha256']}."])


def _bullets(facts: Iterator[tuple[str, object]] | Sequence[tuple[str, object]]) -> str:
    return "\n".join(
        f"* {name}: {_plain(show(value))}" for name, value in facts if value is not None
    )


def _plain(text: Any) -> str:
    """Text of one line that Markdown shows as it is."""
    return one_line(str(text)).replace("<", "&lt;").replace("|", "\\|")
