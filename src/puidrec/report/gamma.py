"""Studies of Γ as files: `gamma.parquet`, `summary.json`, charts and a page. `GammaStudy` is about
the Γ of a rule; the learned Γ is that of a trained model, read off uniform ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from puidrec.atomic import atomic_folder, locked, refuse_other_files, write_json
from puidrec.exposure.certificate import Certificate
from puidrec.exposure.counts import Gains
from puidrec.exposure.tilt import DISLIKED, LIKED, OPEN
from puidrec.gamma_study import GammaStudy
from puidrec.model import Recommender
from puidrec.report.charts import (
    BLUE,
    DARK,
    GREY,
    canvas_of_rows,
    histogram,
    save_png,
)
from puidrec.report.page import Column, Table, clip_text, fragment, render, sentence_of, write_page

SHORT = {LIKED: "liked", DISLIKED: "disliked", OPEN: "open"}
"""What people pick, in a word."""
QUANTILES = {"q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
FILES = ("gamma.parquet", "summary.json", "gamma_histogram.png", "report.html")
SHOWN_GROUPS = 16
SHOWN = 10
"""Users and items, and segments of each side, that are listed."""
LEVEL = 0.9
SIDES: tuple[Literal["user", "item"], ...] = ("user", "item")


def check_target(folder: Path) -> None:
    """Refuse a folder that holds anything that a study did not write: it would be lost."""
    known = (*FILES, "gamma_heatmap.png")  # of an earlier version
    refuse_other_files(folder, known, "an earlier study of Γ", always=FILES[:-1])


def _write(
    folder: Path,
    table: pl.DataFrame,
    summary: Mapping[str, Any],
    chart: Figure,
    page: str,
    values: Mapping[str, Any],
) -> None:
    """Write all files; the folder appears whole or not at all, and replaces nothing but an earlier
    study."""
    with locked(folder):
        check_target(folder)
        with atomic_folder(folder) as temporary:
            table.write_parquet(temporary / FILES[0])
            write_json(temporary / FILES[1], summary)
            save_png(chart, temporary / FILES[2])
            write_page(temporary / FILES[3], page, **values)


# The Γ of a rule


def write_gamma_study(study: GammaStudy, folder: Path) -> None:
    """Write all files of a study."""
    values = _page(study)
    _write(folder, study.table(), gamma_summary(study), values["histogram"], "gamma", values)


def gamma_html(study: GammaStudy) -> str:
    """The study as one self-contained page: what is proved first, then Γ pair by pair, and what it
    rests on."""
    return render("gamma", **_page(study))


def _page(study: GammaStudy) -> dict[str, Any]:
    return {
        "study": study,
        "main": _main(study),
        "sentence": sentence(study),
        "picked": SHORT,
        "basis": _basis(study),
        "middle": float(np.median(study.pairs)),
        "histogram": histogram_of(study),
        "groups": _groups(study),
    }


def _main(study: GammaStudy) -> Certificate | None:
    """The certificate that counts: the last adjusted one."""
    proofs = [proof.certificate for proof in study.proofs if proof.certificate.adjusted]
    return proofs[-1] if proofs else None


def gamma_summary(study: GammaStudy) -> dict[str, Any]:
    """The study in plain values, ready for JSON."""
    pairs, evidence, data, sign = study.pairs, study.evidence, study.data, study.sign
    return {
        "sentence": sentence(study),
        "data": {
            "name": data.name,
            "n_users": data.n_users,
            "n_items": data.n_items,
            "seen": {"rows": evidence.counts.n_observed, "share_of_pairs": evidence.counts.rate},
        },
        "protocol": study.split.protocol.name,
        "seed": study.split.seed,
        "rule": study.rule.describe(),
        "gamma": {
            "min": float(pairs.min()),
            **{name: float(np.quantile(pairs, level)) for name, level in QUANTILES.items()},
            "max": float(pairs.max()),
            "upper_limit": float(study.gamma.max),
            "geometric_mean": float(np.exp(study.gamma.mean_log)),
            "pairs": int(pairs.size),
            "sampled": study.sampled,
            "separable": study.gamma.additive_parts is not None,
            "share_raised_to_one": float(study.gamma.share_clipped),
            "share_at_cap": study.share_at_cap,
            "cap": float(study.gamma.cap),
        },
        "printed_equation": asdict(study.printed),
        "entropies": {name: _entropies(gains) for name, gains in study.gains.items()},
        "groups": {"users": study.sides[0].n_bins, "items": study.sides[1].n_bins},
        "calibration": study.evidence.calibration.to_frame().to_dicts(),
        "certificates": [
            {"outcome": proof.outcome, **asdict(proof.certificate)} for proof in study.proofs
        ],
        "sign": {
            "sentence": sign.sentence,
            "means": [{**gap._asdict(), "finding": gap.finding} for gap in sign.means],
            "log": sign.log and {**sign.log._asdict(), "finding": sign.log.finding},
        },
        "certificate_rows": {
            "seen": len(study.split.train),
            "propensity": study.propensity,
            "uniform": "all uniform rows" if study.proofs else "none",
        },
    }


def _entropies(gains: Gains) -> dict[str, Any]:
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


def sentence(study: GammaStudy) -> str:
    """What the study says, for someone who reads nothing else."""
    median, high = np.quantile(study.pairs, [0.5, 0.95])
    return sentence_of("gamma_sentence", study=study, main=_main(study), median=median, high=high)


def histogram_of(study: GammaStudy) -> Figure:
    """Γ over the pairs, with its median, and what uniform data prove."""
    pairs, limit = study.pairs, study.proved
    marks = [(float(np.median(pairs)), f"median pair: {np.median(pairs):.2f}")]
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


def _groups(study: GammaStudy) -> Table:
    """Pairs of groups with the largest Γ."""
    cells = study.table().filter(kind="cell").sort("gamma", descending=True, maintain_order=True)
    rows = cells.select("gamma", "user_group", "item_group").head(SHOWN_GROUPS).rows()
    words = (
        f"the largest {SHOWN_GROUPS} of {cells.height}" if cells.height > SHOWN_GROUPS else "all"
    )
    caption = f"Γ by group of users and group of items (geometric mean over pairs), {words}."
    return Table([Column("Γ", ".2f"), "users", "items"], rows, caption)


def _basis(study: GammaStudy) -> str:
    rule = study.rule
    printed = "printed equation" if rule.link == "clip" else f"information gains, {rule.direction}"
    names = {
        "constant": f"one Γ = {rule.value:g}",
        "random": "random Γ (control)",
        "information": printed,
    }
    return f"Rule: {names.get(rule.source, rule.source)}"


# The learned Γ of a trained model


def learned_tables(model: Recommender, tables: Sequence[pl.DataFrame | None] = ()) -> pl.DataFrame:
    """One long table: `kind` is user, item or the column of a side table, `name` the id or the
    value."""
    named = [(side, model.gamma(by=side, level=LEVEL), f"{side}_id") for side in SIDES] + [
        (column, model.gamma(by=column, table=table, level=LEVEL), column)
        for table in tables
        if table is not None
        for column in table.columns
        if column not in ("user_id", "item_id")
    ]
    columns = ("gamma", "low", "high", "direction", "rows")
    return pl.concat(
        part.select(
            pl.lit(kind).alias("kind"), pl.col(name).cast(pl.String).alias("name"), *columns
        )
        for kind, part, name in named
    )


def learned_summary(model: Recommender, table: pl.DataFrame) -> dict[str, Any]:
    """Distribution, width and the share that is error of the fit, for users and items; who has the
    largest."""
    sides = {f"{side}s": _side(model, table, side) for side in SIDES}
    segments = table.filter(~pl.col("kind").is_in(SIDES)).sort("low", "gamma", descending=True)
    return {
        "sentence": sentence_of("learned_sentence", level=LEVEL, **sides),
        "method": model.settings.method,
        "level": LEVEL,
        "uniform_rows": int(table.filter(kind="user")["rows"].sum()),
        **sides,
        "segments": segments.to_dicts(),
    }


def _side(model: Recommender, table: pl.DataFrame, side: Literal["user", "item"]) -> dict[str, Any]:
    own, means = table.filter(kind=side), model.uncertainty().means(side)
    gamma, directions = own["gamma"].to_numpy(), own["direction"]
    clear = own.filter(directions != "open").sort("low", "gamma", descending=True)
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    return {
        "number": own.height,
        "gamma": {f"q{round(100 * q)}": float(np.quantile(gamma, q)) for q in levels},
        "direction": {word: int((directions == word).sum()) for word in ("below", "above", "open")},
        "width": float((own["high"] / own["low"]).median()),  # type: ignore[arg-type]
        "share_of_the_fit": float(np.mean(means.fit / means.variance)),
        "largest": clear.head(SHOWN).drop("kind").to_dicts(),
    }


def write_learned(table: pl.DataFrame, summary: Mapping[str, Any], name: str, folder: Path) -> None:
    """Write all files of a learned Γ."""
    values = _learned_page(table, summary, name)
    _write(folder, table, summary, values["charts"]["user"], "learned_gamma", values)


def _learned_page(table: pl.DataFrame, summary: Mapping[str, Any], name: str) -> dict[str, Any]:
    def rows(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**row, "what": clip_text(" = ".join(row[k] for k in ("kind", "name") if k in row), 40)}
            for row in found
        ]

    return {
        "summary": summary,
        "name": name,
        "charts": {side: _learned_histogram(table, side, name) for side in SIDES},
        "largest": {side: rows(summary[f"{side}s"]["largest"]) for side in SIDES},
        "segments": rows(summary["segments"][: 2 * SHOWN]),
    }


def _learned_histogram(table: pl.DataFrame, side: str, name: str) -> Figure:
    """Γ of users or items, with its median."""
    values = table.filter(kind=side)["gamma"].to_numpy()
    middle = float(np.median(values))
    return histogram(
        values,
        title=f"Learned Γ of {side}s ({name})",
        start=1.0,
        marks=[(middle, f"median: {middle:.2f}")],
        caption="Γ = 1: unseen ratings are what the log says.",
        x="Γ that unseen ratings ask for",
        y=f"share of {side}s (%)",
    )


# A certificate in a notebook


def certificate_view(certificate: Certificate) -> str:
    """The sentence and a table of levels, and of the segments in which something is proved."""
    return fragment("certificate_view", found=certificate)


def certificate_figure(certificate: Certificate) -> Figure:
    """The limit of Γ that each event proves, and its estimate."""
    rows = certificate.levels
    names, words = [row.name for row in rows], certificate.sentence
    figure, axes = canvas_of_rows(names, "What uniform ratings prove", words, "Γ")
    places, lower = range(len(rows)), [row.lower for row in rows]
    axes.hlines(places, 1.0, lower, color=BLUE, linewidth=5.0, label="proved")
    gamma, estimate = [row.gamma for row in rows], "point estimate (biased upward)"
    axes.scatter(gamma, places, facecolors="none", edgecolors=GREY, label=estimate)
    axes.axvline(1.0, color=DARK, linewidth=0.8)
    axes.legend(fontsize=8, frameon=False)
    return figure
