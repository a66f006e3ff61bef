"""The pages of a reproduction, paper.md and field.md, from the summary alone: sentences follow from
the figures by rule, so that other figures give other sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from puidrec.atomic import write_text
from puidrec.comparing.summary import by
from puidrec.report.page import markdown_page
from puidrec.reproduce.grids import PRESETS
from puidrec.reproduce.paper_tables import MASK_RATIOS, METRICS, SHARES, printed
from puidrec.reproduce.run import PAPER_QUESTIONS

Row = Mapping[str, Any]
NAMES = {"coat": "Coat", "yahoo-r3": "Yahoo!R3", "kuairec": "KuaiRec", "ml-100k": "MovieLens 100K"}
MARKS = {"wins": "▲", "loses": "▼"}
DR_VARIANTS = ("mrdr", "dr-mse", "tdr", "stable-dr", "d-dr", "dr-v2", "kernel-dr")
ALS = "implicit’s ALS"
BASELINES = ("popularity", "item-rate", "bias", "all-rank", "ease", ALS)


def write_reproduction(out: Path, summary: Row, command: str) -> list[Path]:
    """Write the page of the paper's questions, and that of the field, as far as they were asked."""
    pages = {}
    if {*PAPER_QUESTIONS} & {*summary["questions"]}:
        pages["paper.md"] = paper_text(summary, f"Made by `{command}`.")
    if "field" in summary["questions"]:
        pages["field.md"] = field_text(summary, f"Made by `{command}`.")
    for name, text in pages.items():
        write_text(out / name, text)
    return [out / name for name in pages]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def _figure(row: Row | None) -> str:
    """A mean, half of its interval over users, and whether it beats the reference."""
    if row is None:
        return "–"
    half = "" if row["half"] is None else f"±{row['half']:.3f}"
    return f"{row['mean']:.3f}{half}{MARKS.get(row['verdict'], '')}"


def _counts(rows: Iterable[Row]) -> str:
    count = Counter(row["verdict"] for row in rows)
    return f"{count['wins']} won, {count['ties']} tied, {count['loses']} lost"


# The paper


def paper_text(summary: Row, made: str) -> str:
    """What became of each claim of the paper, then the tables."""
    tables = summary["tables"]
    return markdown_page(
        "paper",
        made=made,
        summary=summary,
        presets=PRESETS,
        claims=table(("the paper's claim", "what we found", "how sure"), claims(summary)),
        rq1=[
            (NAMES[name], rq1_table(own, name, metric), metric.upper(), _basis(summary, own, name))
            for name, own in by(tables.get("rq1", ()), lambda row: row["source"]).items()
            for metric in METRICS[name]
        ],
        rq2=[
            (NAMES[name], rq2_table(own, name), max(row["n_seeds"] for row in own))
            for name, own in by(tables.get("rq2", ()), lambda row: row["source"]).items()
        ],
        rq3=[(side, rq3_table(found)) for side, found in summary["rq3"].items()],
        rq4=rq4_table(summary["rq4"]) if summary["rq4"] else "",
        ablation=ablation_table(tables["ablation"]) if tables.get("ablation") else "",
    )


def claims(summary: Row) -> list[tuple[str, str, str]]:
    """Claim, finding and how sure it is, for all that the summary has figures for."""
    return [
        *_gamma_claims(summary),
        *_table_claims(summary),
        *_entropy_claims(summary),
    ]


def _gamma_claims(summary: Row) -> list[tuple[str, str, str]]:
    """Γ as printed, and a personalised Γ against one Γ, random ones, none."""
    found = []
    if facts := summary["facts"]:
        values = ", ".join(f"{NAMES[row['data']]} {row['gamma']:.3f}" for row in facts)
        all_below = all(row["below_one"] > 0.999 for row in facts)
        text = "a bound on an odds ratio is never below 1, so as printed it allows nothing hidden"
        end = text if all_below else "below 1 it allows nothing hidden"
        found.append(
            (
                "Γ = α·IG_u + β·IG_i bounds what is hidden",
                f"with α = 2 and β = 5 it is {values}; {end}",
                "certain: arithmetic on the logs",
            )
        )
    words = {
        "one": "a personal Γ beats one Γ (PUID over RD, BPUID over BRD)",
        "random": "a personal Γ beats a random one of equal size",
        "none": "a personal Γ beats none (PUID over IPS and DR)",
    }
    for kind, rows in by(summary["contrasts"], lambda row: row["kind"]).items():
        parts = [
            f"{'paper’s networks' if preset.startswith('paper') else 'our fits'}: {_counts(own)}"
            for preset, own in by(rows, lambda row: row["preset"][:5]).items()
        ]
        most = max(rows, key=lambda row: abs(row["difference"]))
        where = f"{most['method'].split(',')[0]}, {NAMES[most['source']]}, {most['metric'].upper()}"
        widths = sorted((row["high"] - row["low"]) / 2 for row in rows)
        sure = (
            f"{len(rows)} paired comparisons, Holm; median ±{widths[len(widths) // 2]:.3f}; "
            f"largest difference {most['difference']:+.3f} ({where})"
        )
        found.append((words[kind], "; ".join(parts), sure))
    return found


def _table_claims(summary: Row) -> list[tuple[str, str, str]]:
    """Debiasing against `mf`, the item rate, masks, the ablation, training pairs in the test."""
    found = []
    rq1 = [row for row in summary["tables"].get("rq1", ()) if row["metric"] == "uauc"]
    parts = []
    for preset, own in by(rq1, lambda row: row["preset"]).items():
        theirs = [r for r in own if printed(r["label"], r["source"], "uauc") and r["verdict"]]
        parts.append(f"{preset}: {_counts(theirs)}")
    if parts:
        floor = [row for row in rq1 if row["label"] == "item-rate"]
        sure = f"UAUC, paired over users, Holm within a table; {_seeds(rq1)}"
        found.append(("debiased methods beat plain MF", "; ".join(parts), sure))
        text = f"against `mf`, by table: {_counts(floor)}"
        found.append(("(not in the paper) the mean rating of an item, no learning", text, sure))
    if rq2 := [row for row in summary["tables"].get("rq2", ()) if row["metric"] == "uauc"]:
        best = [
            max(own, key=lambda row: float(row["mean"]))["label"]
            for own in by(rq2, lambda row: (row["source"], row["mask"])).values()
        ]
        told = ", ".join(f"{name} {n}×" for name, n in Counter(best).most_common())
        sure = f"highest mean only; {len(best)} masked logs, {_seeds(rq2)}"
        found.append(("PUID leads as rows are removed (RQ2)", f"best UAUC: {told}", sure))
    if rows := [
        r for r in summary["tables"].get("ablation", ()) if r["verdict"] and "+" not in r["label"]
    ]:
        text = f"variants 2–5 against variant 1: {_counts(rows)}"
        sure = f"{len(rows)} paired comparisons, {_seeds(rows)}"
        found.append(("the full PUID is best in the ablation", text, sure))
    return [*found, *_overlap_claim(rq1)]


def _seeds(rows: Sequence[Row]) -> str:
    """How many seeds the rows rest on, fewest and most."""
    low, high = min(r["n_seeds"] for r in rows), max(r["n_seeds"] for r in rows)
    span = f"{high}" if low == high else f"{low} to {high}"
    return f"{span} seed{'s' if high > 1 else ''}"


def _overlap_claim(rq1: Sequence[Row]) -> list[tuple[str, str, str]]:
    at = {(row["preset"], row["label"]): row["mean"] for row in rq1 if row["source"] == "kuairec"}
    pairs = [
        (mean, at["paper", label])
        for (preset, label), mean in at.items()
        if preset == "paper-overlapping" and ("paper", label) in at
    ]
    if not pairs:
        return []
    up = sum(over - held for over, held in pairs) / len(pairs)
    text = f"scoring training pairs, as the paper does, moves UAUC by {up:+.3f}"
    return [("KuaiRec's figures are of unseen pairs", text, f"{len(pairs)} methods, 1 seed")]


def _entropy_claims(summary: Row) -> list[tuple[str, str, str]]:
    found = []
    for side, rq3 in summary["rq3"].items():
        real, control = rq3["features"], rq3["control"]
        known = [mean for row in real["means"] for mean in row if mean is not None]
        text = (
            f"positive in {real['positive']:.0%}, and in {control['positive']:.0%} with permuted "
            f"features, which carry no information; mean ratios from {min(known):.2f} to {max(known):.2f}; "
            f"both gains beyond chance in {real['beyond_chance']:.0%}"
        )
        claim = f"observed and hidden {side} features inform in proportion (RQ3)"
        found.append((claim, text, f"{rq3['orders']} random orders × 16 shares"))
    for side, rq4 in summary["rq4"].items():
        text = (
            f"it does not fall in {rq4['plugin_rises']:.0%} of steps, nor does that of noise in "
            f"{rq4['noise_rises']:.0%}; with all hidden, noise has "
            f"{rq4['noise'][-1] / rq4['plugin'][-1]:.0%} of the gain"
        )
        claim = f"the gain rises with the number of hidden {side} features (RQ4)"
        found.append((claim, text, f"{rq4['orders']} random orders; nested bins cannot fall"))
    return found


def rq1_table(rows: Sequence[Row], name: str, metric: str) -> str:
    """Methods × (printed, then preset and protocol)."""
    own = [row for row in rows if row["metric"] == metric]
    columns = dict.fromkeys((row["preset"], row["protocol"]) for row in own)
    at = {(row["preset"], row["protocol"], row["label"]): row for row in own}
    order = [row.label or row.method for preset in PRESETS.values() for row in preset.rows]
    labels = [label for label in dict.fromkeys(order) if any(label == key[2] for key in at)]
    body = []
    for label in labels:
        figure = printed(label, name, metric)
        cells = [_figure(at.get((*column, label))) for column in columns]
        body.append([label, "–" if figure is None else f"{figure:.3f}", *cells])
    return table(("method", "printed", *(f"{a}, {b}" for a, b in columns)), body)


def _basis(summary: Row, rows: Sequence[Row], name: str) -> str:
    """Positive rates, seeds, and what random orders score."""
    facts: Row = next((row for row in summary["facts"] if row["data"] == name), {"chance": {}})
    rates = {row["protocol"]: row["positive_rate"] for row in rows}
    parts = []
    for protocol, rate in rates.items():
        random = facts["chance"].get(protocol, {})
        scores = "/".join(f"{random[key]:.3f}" for key in METRICS[name] if key in random)
        parts.append(f"{protocol} {rate:.1%}" + (f" (random order {scores})" if scores else ""))
    seeds = {
        key: max(row["n_seeds"] for row in own)
        for key, own in by(rows, lambda r: r["preset"]).items()
    }
    told = ", ".join(f"{key} {n}" for key, n in seeds.items())
    return f"Positive test rows: {', '.join(parts)}. Seeds: {told}."


def rq2_table(rows: Sequence[Row], name: str) -> str:
    """Methods × masks, UAUC: printed → ours."""
    at = {(row["label"], row["mask"]): row for row in rows if row["metric"] == "uauc"}
    labels = sorted({label for label, _ in at}, key=[*_printed_order(), "item-rate"].index)
    body = []
    for label in labels:
        cells = []
        for mask in MASK_RATIOS:
            figure = printed(label, name, "uauc", mask)
            shown = "" if figure is None else f"{figure:.3f}→"
            cells.append(shown + _figure(at.get((label, mask))))
        body.append([label, *cells])
    return table(("method", *(f"{mask:.0%} removed" for mask in MASK_RATIOS)), body)


def _printed_order() -> list[str]:
    return [row.method for row in PRESETS["paper"].rows if row.label is None]


def rq3_table(found: Row) -> str:
    """Mean ratio and, behind the stroke, that of permuted features; user shares × item shares."""
    real, control = (found[key]["means"] for key in ("features", "control"))
    body = [
        [f"users 1/{share}", *(f"{_two(a)}/{_two(b)}" for a, b in zip(x, y, strict=True))]
        for share, x, y in zip(SHARES, real, control, strict=True)
    ]
    return table(("observed", *(f"items 1/{share}" for share in SHARES)), body)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def rq4_table(rq4: Row) -> str:
    """Gains in millinats at quarters of the features hidden."""
    body = []
    for side, found in rq4.items():
        n = len(found["plugin"])
        at = [max(1, round(n * share)) - 1 for share in (0.25, 0.5, 0.75, 1.0)]
        cells = [f"{1e3 * found['plugin'][k]:.2f} ({1e3 * found['noise'][k]:.2f})" for k in at]
        body.append([f"{side} features ({n})", *cells])
    return table(("hidden", "a quarter", "half", "three quarters", "all"), body)


def ablation_table(rows: Sequence[Row]) -> str:
    """Variants × (preset, metric)."""
    columns = dict.fromkeys((row["preset"], row["metric"]) for row in rows)
    at = {(row["preset"], row["metric"], row["label"]): row for row in rows}
    labels = sorted({row["label"] for row in rows}, key=lambda x: (x[0], x[1] == "+", x))
    body = [[x, *(_figure(at.get((*column, x))) for column in columns)] for x in labels]
    return table(("variant", *(f"{a}, {b.upper()}" for a, b in columns)), body)


# The field


PUBLISHED = {
    ("coat", "rd"): "AutoDebias AUC .766, NDCG@5 .522; RD's public code UAUC .684, NDCG@5 .509",
    ("yahoo-r3", "rd"): "AutoDebias AUC .741, NDCG@5 .645; RD's public code UAUC .681, NDCG@5 .582",
    ("coat", "cvib"): "D-DR AUC .7804; UPO NDCG@5 .691",
    ("yahoo-r3", "cvib"): "CVIB AUC .7231, NDCG@5 .7133; UPO AUC .717, NDCG@5 .694",
    ("coat", "idcf"): "IViDR NDCG@5 .5903; iDCF NDCG@5 .5638",
    ("yahoo-r3", "idcf"): "IViDR NDCG@5 .6602; iDCF NDCG@5 .6410",
}
"""Figures in print, each under its own protocol."""


def field_text(summary: Row, made: str) -> str:
    """Five sentences, then methods × data sets by three metrics."""
    rows = summary["tables"]["field"]
    columns = list(dict.fromkeys((row["data"], row["protocol"]) for row in rows))
    first = {
        column: [r for r in rows if (r["data"], r["protocol"]) == column] for column in columns
    }
    return markdown_page(
        "field",
        made=made,
        findings=field_findings(rows),
        matrices=[
            (metric.upper(), field_matrix(rows, columns, metric))
            for metric in dict.fromkeys(row["metric"] for row in rows)
        ],
        basis=[
            (_title(column), f"{own[0]['positive_rate']:.1%}", max(r["n_seeds"] for r in own))
            for column, own in first.items()
        ],
        published=[(_title(key), PUBLISHED[key]) for key in columns if key in PUBLISHED],
        failed=summary["failed"],
        unfinished=summary["unfinished"],
    )


def _title(column: tuple[str, str]) -> str:
    return f"{NAMES.get(column[0], column[0])} {column[1]}"


def field_matrix(rows: Sequence[Row], columns: Sequence[tuple[str, str]], metric: str) -> str:
    """Means with marks; the last row is the typical half-width of a paired difference to `mf`."""
    own = [row for row in rows if row["metric"] == metric]
    at = {(row["data"], row["protocol"], row["label"]): row for row in own}
    means = by(own, lambda row: row["label"])
    labels = sorted(means, key=lambda x: (-_wins(own, x), -sum(r["mean"] for r in means[x]), x))
    body = []
    for label in labels:
        found = [at.get((*column, label)) for column in columns]
        cells = ["–" if r is None else _figure({**r, "half": None}) for r in found]
        body.append([f"`{label}`", str(max(r["uniform_rows"] for r in found if r)), *cells])
    typical = []
    for column in columns:
        halves = sorted(
            (r["difference_high"] - r["difference_low"]) / 2
            for r in own
            if (r["data"], r["protocol"]) == column and r["difference_high"] is not None
        )
        typical.append(f"±{halves[len(halves) // 2]:.3f}" if halves else "–")
    head = ("method", "uniform rows", *map(_title, columns))
    return table(head, [*body, ["*typical ±*", "", *typical]])


def _wins(rows: Iterable[Row], label: str) -> float:
    count = Counter(row["verdict"] for row in rows if row["label"] == label)
    return count["wins"] - count["loses"]


def field_findings(rows: Sequence[Row]) -> list[str]:
    """The five sentences that matter, by UAUC."""
    own = [row for row in rows if row["metric"] == "uauc"]
    if not own:
        return []
    best = {
        _title(key): max(part, key=lambda row: float(row["mean"]))
        for key, part in by(own, lambda row: (row["data"], row["protocol"])).items()
    }
    judged = [row for row in own if row["verdict"]]
    ahead = [
        label for label in dict.fromkeys(r["label"] for r in judged) if _wins(judged, label) > 0
    ]
    with_rows = {row["label"] for row in own if row["uniform_rows"]}
    variants = [row for row in own if row["label"] in DR_VARIANTS and row["to_dr"]]
    to_dr = _counts({"verdict": row["to_dr"]} for row in variants)
    floors = ", ".join(
        f"`{name}` {_counts(r for r in judged if r['label'] == name)}" for name in BASELINES
    )
    groups = {
        "methods with": [r for r in judged if r["label"] in with_rows],
        "methods without": [r for r in judged if r["label"] not in (*with_rows, *BASELINES)],
    }
    split = "; ".join(f"{words} uniform rows {_counts(part)}" for words, part in groups.items())
    return [
        "Best mean: "
        + ", ".join(f"{k} `{r['label']}` {r['mean']:.3f}" for k, r in best.items())
        + ".",
        f"More tables won than lost against `mf`: {', '.join(f'`{x}`' for x in ahead) or 'none'}.",
        f"Comparisons with `mf`: {split}.",
        f"Variants of DR against `dr`: {to_dr}.",
        f"Baselines against `mf`: {floors}.",
    ]
