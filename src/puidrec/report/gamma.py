"""A study of Γ as files: `gamma.parquet`, `summary.json`, two charts, and a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.sign_check import DISLIKED, LIKED, OPEN
from puidrec.features.bins import SideBins
from puidrec.gamma_study import GammaStudy
from puidrec.report.blocks import (
    Block,
    Column,
    Figure,
    Page,
    Paragraph,
    Section,
    Table,
    Tone,
    VerdictBox,
)
from puidrec.report.charts import MAX_GROUPS, heat_map, histogram, save_png
from puidrec.report.formatting import Value, clip_text, short_labels
from puidrec.report.html import write_page

MEASURES = "A rule measures unexplained exposure, not confounding: only uniform ratings prove that something is hidden."
"""Said beside every rule's Γ: benign variation of activity raises it where nothing is hidden."""
SHORT = {LIKED: "liked", DISLIKED: "disliked", OPEN: "open"}
"""What people pick, in a word."""
QUANTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
FILES = ("gamma.parquet", "summary.json", "gamma_histogram.png", "gamma_heatmap.png", "report.html")


def gamma_summary(study: GammaStudy) -> dict[str, Any]:
    """The study in plain values, ready for JSON."""
    pairs, evidence, data = study.pairs, study.evidence, study.data
    quantiles = {name: float(np.quantile(pairs, level)) for name, level in QUANTILES.items()}
    spread = {
        "min": float(pairs.min()),
        **quantiles,
        "max": float(pairs.max()),
        "upper_limit": float(study.gamma.max),
    }
    train = {"rows": evidence.counts.n_observed, "share_of_pairs": evidence.counts.rate}
    return {
        "sentence": sentence(study),
        "data": {
            "name": data.name,
            "n_users": data.n_users,
            "n_items": data.n_items,
            "seen": train,
        },
        "protocol": study.split.protocol.name,
        "seed": study.split.seed,
        "rule": study.rule.describe(),
        "gamma": {
            **spread,
            "geometric_mean": float(np.exp(study.gamma.mean_log)),
            "pairs": int(pairs.size),
            "sampled": study.sampled,
            "separable": study.gamma.additive_parts is not None,
            "share_raised_to_one": float(study.gamma.share_clipped),
            "share_at_cap": study.share_at_cap,
            "cap": float(study.gamma.cap),
        },
        "printed_equation": asdict(study.printed),
        "entropies": {name: _entropies(study, name) for name in study.gains},
        "groups": {"users": study.sides[0].n_bins, "items": study.sides[1].n_bins},
        "calibration": study.calibration.to_frame().to_dicts(),
        "certificates": [
            {"outcome": proof.outcome, **asdict(proof.certificate)} for proof in study.proofs
        ],
        "sign": {
            "sentence": study.sign.sentence,
            "means": [{**gap._asdict(), "finding": gap.finding} for gap in study.sign.means],
            "log": None
            if study.sign.log is None
            else {**study.sign.log._asdict(), "finding": study.sign.log.finding},
        },
        "certificate_rows": {
            "seen": len(study.split.train),
            "propensity": study.propensity,
            "uniform": "all uniform rows" if study.proofs else "none",
        },
    }


def sentence(study: GammaStudy) -> str:
    """What the study says, for someone who reads nothing else."""
    median, high = np.quantile(study.pairs, [0.5, 0.95])
    if study.pairs.max() <= 1.0 + 1e-12:
        text = (
            "This rule gives Γ = 1 for every pair: it claims that nothing hidden drives exposure."
        )
    elif np.ptp(study.pairs) < 1e-9:
        text = f"Γ is {median:.2f} for every pair: what is hidden may multiply or divide the odds of exposure by that."
    else:
        text = (
            f"What is hidden may multiply or divide the odds of exposure by {median:.2f} for the median pair "
            f"and by {high:.2f} or more for one pair in twenty."
        )
    text = f"{text} {MEASURES}"
    limit = study.proved
    if limit is None:
        return text
    if limit <= 1.0:
        return f"{text} The uniform ratings do not prove any hidden confounding."
    below = float((study.pairs < limit).mean())
    main = next(proof.certificate for proof in reversed(study.proofs) if proof.certificate.adjusted)
    what = (
        "; boosted trees explain it, so it is misfit of the propensity"
        if main.finding == "misfit"
        else ""
    )
    return (
        f"{text} Around propensity {study.propensity}, the uniform ratings prove that Γ must reach {limit:.2f} "
        f"somewhere (95 % confidence), hidden or missed by the propensity{what}; this rule stays below that for "
        f"{below:.1%} of the pairs."
    )


def write_gamma_study(study: GammaStudy, folder: Path) -> None:
    """Write all files; the folder appears whole or not at all, and replaces nothing but an earlier
    study."""
    with locked(folder):
        check_target(folder)
        _write_files(study, folder)


def _write_files(study: GammaStudy, folder: Path) -> None:
    with atomic_folder(folder) as temporary:
        study.table().write_parquet(temporary / "gamma.parquet")
        write_json(temporary / "summary.json", gamma_summary(study))
        save_png(histogram_of(study), temporary / "gamma_histogram.png")
        save_png(heat_map_of(study), temporary / "gamma_heatmap.png")
        write_page(temporary / "report.html", gamma_page(study))


def gamma_page(study: GammaStudy) -> Page:
    """The study as one self-contained page: what is proved first, then Γ pair by pair, and what it
    rests on."""
    main = next(
        (proof.certificate for proof in reversed(study.proofs) if proof.certificate.adjusted), None
    )
    proved: list[Block] = [
        Paragraph("No uniform rows: nothing in these data proves how large Γ must be.")
    ]
    if main is not None:
        proved = [
            Paragraph(main.sentence),
            _levels(main),
            *([_segments(main)] if main.segments else []),
        ]
    features = [
        [row["feature"], row["side"], row["gamma_mean"], row["gamma_90"]]
        for row in study.calibration.to_frame().to_dicts()
    ]
    columns = ("feature", "of", Column("Γ, mean pair", ".3f"), Column("Γ, 1 pair in 10", ".3f"))
    sign: list[Block] = [
        Paragraph(study.sign.sentence),
        *([_means(study)] if study.sign.means else []),
    ]
    sections = [
        Section("proved", "What uniform ratings prove", proved),
        Section("sign", "Do people pick what they like?", sign),
        Section(
            "pairs",
            "Γ of the rule, pair by pair",
            [
                Paragraph(MEASURES),
                Figure.of(
                    histogram_of(study), alt=f"Histogram of Γ; median {np.median(study.pairs):.2f}"
                ),
                Figure.of(heat_map_of(study), alt="Γ by group of users and group of items"),
            ],
        ),
        Section(
            "features",
            "What hiding a feature is worth",
            [Table(columns, features, caption="By feature.")],
        ),
    ]
    tone: Tone = "warn" if main is not None and main.finding == "hidden or missed" else "info"
    label = "No uniform rows" if main is None else main.finding.capitalize()
    return Page(
        title=f"Γ of {study.data.name}",
        lead=f"{_basis(study)}, protocol {study.split.protocol.name}.",
        kind="Γ",
        sections=sections if features else sections[:-1],
        verdict=VerdictBox(tone, label, sentence(study)),
    )


def _levels(main: Certificate) -> Table:
    columns = (
        "event",
        Column("seen", ".1%", "reweighted to unseen pairs"),
        Column("unseen", ".1%"),
        Column("Γ ≥", ".3f", "95 %, simultaneous"),
        Column("estimate", ".2f", "biased upward, used for nothing"),
        Column("p", ".3f", "Holm"),
    )
    body: list[list[Value]] = [
        [row.name, row.seen, row.unseen, row.lower, row.gamma, row.p_value] for row in main.levels
    ]
    return Table(
        columns, body, caption=f"{main.n_uniform:,} uniform rows of pairs that are not in the log."
    )


def _segments(main: Certificate) -> Table:
    columns = (
        "segment",
        "of",
        Column("uniform rows", ",d"),
        Column("Γ ≥", ".3f"),
        Column("p", ".3f", "Holm"),
    )
    body: list[list[Value]] = [
        [row.name, f"{row.side}s", row.n_uniform, row.lower, row.p_value] for row in main.segments
    ]
    return Table(
        columns, body, caption="Segments with at least 50 uniform rows; limits hold together."
    )


def _means(study: GammaStudy) -> Table:
    columns = (
        "pairs",
        "of",
        Column("seen", ".3f", "mean, reweighted to unseen pairs"),
        Column("unseen", ".3f", "mean"),
        Column("low", "+.3f", "95 % interval of seen - unseen"),
        Column("high", "+.3f"),
        Column("p", ".3f", "Holm over segments"),
        Column("picked", "", "what people pick; open: not shown"),
    )
    body: list[list[Value]] = [
        [
            gap.name,
            f"{gap.side}s" if gap.side else "",
            gap.seen,
            gap.unseen,
            gap.low,
            gap.high,
            gap.p_value,
            gap.finding,
        ]
        for gap in study.sign.means
    ]
    return Table(
        columns, body, caption="Mean ratings of seen and of unseen pairs, in whole and by segment."
    )


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything that a study did not write: it would be lost."""
    refuse_other_files(folder, FILES, "an earlier study of Γ", always=FILES[:-1])


def histogram_of(study: GammaStudy) -> Drawing:
    """Γ over the pairs, with its median, and what uniform data prove."""
    pairs = study.pairs
    marks = [(float(np.median(pairs)), f"median pair: {np.median(pairs):.2f}")]
    limit = study.proved
    if limit is not None and limit > 1.0:
        marks.append((limit, f"uniform ratings prove Γ ≥ {limit:.2f} somewhere"))
    drawn = (
        f"{pairs.size:,} pairs drawn at random" if study.sampled else f"all {pairs.size:,} pairs"
    )
    return histogram(
        pairs,
        title=f"How strong hidden confounding may be, pair by pair ({study.data.name})",
        caption=f"{_basis(study)}; {drawn}. Γ = 1: nothing hidden drives who sees what.",
        start=1.0,
        x="Γ: factor by which hidden traits may change the odds that a user sees an item",
        y="share of user–item pairs (%)",
        marks=marks,
    )


def heat_map_of(study: GammaStudy) -> Drawing:
    """Γ by group of users and group of items, strongest first; only the largest groups where there
    are many."""
    table = np.exp(study.gamma.cell_mean_log())
    users, items = study.sides
    size = [
        np.bincount(side.codes, minlength=n)
        for side, n in zip((users, items), table.shape, strict=True)
    ]
    kept = [
        np.sort(np.argsort(-n, kind="stable")[: min(MAX_GROUPS, int((n > 0).sum()))]) for n in size
    ]
    shown = table[np.ix_(*kept)]
    order = [
        np.argsort(-np.log(shown).mean(axis=1), kind="stable"),
        np.argsort(-np.log(shown).mean(axis=0)),
    ]
    names = [
        _axis(side, index[rank])
        for side, index, rank in zip((users, items), kept, order, strict=True)
    ]
    order_words = (
        "Groups with the largest Γ come first."
        if np.ptp(shown) > 1e-6
        else "All groups have the same Γ."
    )
    return heat_map(
        shown[np.ix_(*order)],
        names[0][0],
        names[1][0],
        title=f"Where hidden confounding may be strong: Γ by group ({study.data.name})",
        caption=f"{_basis(study)}. {order_words}",
        x=_axis_title("items", names[1][1], len(kept[1]), items.n_bins),
        y=_axis_title("users", names[0][1], len(kept[0]), users.n_bins),
        unit="Γ (geometric mean over pairs)",
    )


def _axis(side: SideBins, chosen: np.ndarray) -> tuple[list[str], list[str]]:
    labels, columns = short_labels(
        [side.labels[k] for k in chosen.tolist()], side.columns, width=34
    )
    return labels, columns


def _axis_title(side: str, columns: list[str], shown: int, total: int) -> str:
    what = (
        f"groups of {side}"
        if shown == total
        else f"the {shown} largest of {total} groups of {side}"
    )
    return f"{what}, by {clip_text(', '.join(columns), 160)}" if columns else what


def _basis(study: GammaStudy) -> str:
    rule = study.rule
    name = {"constant": f"one Γ = {rule.value:g}", "random": "random Γ (control)"}.get(
        rule.source, rule.source
    )
    if rule.source == "information":
        name = "printed equation" if rule.link == "clip" else f"information gains, {rule.direction}"
    return f"Rule: {name}"


def _entropies(study: GammaStudy, name: str) -> dict[str, Any]:
    gains = study.gains[name]
    facts: dict[str, Any] = {
        "H": gains.H,
        "H_given_user": gains.H - gains.gain_user,
        "H_given_both": gains.H - gains.gain_user - gains.gain_item,
        "gain_user": gains.gain_user,
        "gain_item": gains.gain_item,
    }
    for side, null in (("user", gains.null_user), ("item", gains.null_item)):
        if null is not None:
            facts[f"chance_{side}"] = {"mean": null.mean, "low": null.low, "high": null.high}
    return facts
