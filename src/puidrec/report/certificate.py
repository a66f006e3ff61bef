"""A certificate as a figure, and as a small table for notebooks."""

from __future__ import annotations

from html import escape

from matplotlib.figure import Figure

from puidrec.report.charts import BLUE, DARK, GREY, panels_of
from puidrec.sensitivity.certificate import Certificate


def certificate_figure(certificate: Certificate) -> Figure:
    """Left: shares of every event among seen and unseen pairs. Right: the limit of Γ that each proves."""
    rows = certificate.levels
    figure, (shares, limits) = panels_of(
        2, 1.8 + 0.34 * max(len(rows), 1), "What uniform ratings prove", certificate.sentence, share_y=True
    )
    places = list(range(len(rows)))
    shares.set_yticks(places, [row.name for row in rows])
    for place, row in zip(places, rows, strict=True):
        shares.plot([100 * row.seen, 100 * row.unseen], [place, place], color=GREY, linewidth=1.2, zorder=1)
        limits.plot([1.0, row.lower], [place, place], color=BLUE, linewidth=5.0, solid_capstyle="butt")
    shares.scatter([100 * row.seen for row in rows], places, color=BLUE, label="seen, reweighted", zorder=2)
    shares.scatter(
        [100 * row.unseen for row in rows], places, color=DARK, marker="D", label="unseen (uniform rows)", zorder=2
    )
    limits.scatter(
        [row.gamma for row in rows], places, facecolors="none", edgecolors=GREY, label="point estimate (biased upward)"
    )
    limits.scatter([row.lower for row in rows], places, color=BLUE, marker="|", s=90, label="proved: lower limit")
    shares.set_xlabel("share of pairs (%)")
    limits.set_xlabel("Γ")
    limits.axvline(1.0, color=DARK, linewidth=0.8)
    for axes in (shares, limits):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure


def certificate_html(certificate: Certificate) -> str:
    """The sentence and a table of levels and segments, in the notebook's own colours (light or dark)."""
    head = "".join(f"<th>{text}</th>" for text in ("", "seen", "unseen", "Γ ≥", "estimate, biased upward", "p (Holm)"))
    levels = [
        (row.name, f"{row.seen:.1%}", f"{row.unseen:.1%}", f"{row.lower:.3f}", f"{row.gamma:.3f}", f"{row.p_value:.3g}")
        for row in certificate.levels
    ]
    segments = [
        (
            f"{row.side}s, {row.name}", "", f"{row.n_uniform:,} rows", f"{row.lower:.3f}", f"{row.gamma:.3f}",
            f"{row.p_value:.3g}",
        )
        for row in certificate.segments
        if row.lower > 1.0
    ]  # fmt: skip
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in (*levels, *segments)
    )
    title = f"<p><strong>Γ ≥ {certificate.lower:.2f}</strong> ({escape(certificate.finding)})</p>"
    return (
        f"<div>{title}<p>{escape(certificate.sentence)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )
