"""`puid gamma`: how strong hidden confounding may be, pair by pair, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from puidrec.cli import options
from puidrec.cli.command import Options, command, option, quick_imports
from puidrec.cli.output import print_json, print_table, say, steps
from puidrec.errors import InputError

if TYPE_CHECKING:
    from puidrec.data.dataset import Dataset
    from puidrec.exposure.gamma import GammaRule

RULES = "paper, information, residual, info, exposure-gap, recovered, global, random, or a number."
WEIGHTED = ("information", "exposure-gap")
"""Sources that α and β act on."""


@dataclass(frozen=True)
class GammaDataOptions(options.DataOptions):
    """A data set; --set takes parts of the rule as well."""

    settings: list[str] | None = option(
        None,
        "data.KEY: an option of the data source; gamma.KEY: a part of the rule (gamma.entropy=plugin).",
        "--set",
        metavar="KEY=VALUE",
        callback=options.merge_settings,
    )
    sections: ClassVar[Sequence[str] | None] = ("data", "gamma")


@dataclass(frozen=True)
class RuleOptions(Options):
    """Which rule gives Γ, and its weights."""

    rule: str = option("information", RULES, metavar="RULE")
    alpha: str | None = option(None, "Weight of the user part: a number or auto.")
    beta: str | None = option(None, "Weight of the item part: a number or auto.")

    def resolve(self, more: dict[str, Any]) -> GammaRule:
        """The rule with the weights given; a weight that the rule would ignore is an error."""
        from puidrec.exposure.gamma import resolve_gamma

        texts = {"alpha": self.alpha, "beta": self.beta}
        weights = {
            key: options.parse_value(text) for key, text in texts.items() if text is not None
        }
        chosen = resolve_gamma(self.rule, **more, **weights)
        if weights and (chosen.source not in WEIGHTED or chosen.link == "info"):
            name = next(iter(weights))
            raise InputError(
                f"--{name} has no effect on this rule", found=self.rule, hint="Leave it out."
            )
        return chosen


@command("puid gamma --data coat --data-dir coat --rule information --out gamma-coat", writes="out")
def gamma(
    data: GammaDataOptions,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="Folder written by puid train: show the Γ that its uniform ratings taught it.",
            metavar="RUN",
            readable=False,
        ),
    ] = None,
    *,
    rule: RuleOptions,
    shards: options.Shards = None,
    propensity: options.PropensityName = "two-way",
    protocol: options.ProtocolName = "rd",
    seed: options.Seed = 0,
    output: options.OutputOptions,
) -> None:
    """Show how strong hidden confounding may be, pair by pair (Γ), what that rests on and what data
    prove of it.

    With RUN: the learned Γ of a spectrum model that uniform ratings calibrated, for whom it is
    largest and how sure.
    """
    if run is not None:
        _learned(run, output)
        return
    with quick_imports():
        from puidrec.gamma_study import study_gamma
        from puidrec.report.gamma import check_target, gamma_summary, write_gamma_study

    chosen = rule.resolve(options.section(data.parsed_settings(), "gamma"))
    if output.out is not None:
        check_target(output.out)
    with steps("reading") as step:
        loaded = data.load(shards)
        study = study_gamma(
            loaded, chosen, protocol=protocol, seed=seed, propensity=propensity, progress=step
        )
        tilt = "" if output.as_json else _tilt(loaded, propensity, protocol, seed)
        if output.out is not None:
            step("writing")
            write_gamma_study(study, output.out)
    summary = gamma_summary(study)
    if output.as_json:
        print_json(summary)
    else:
        _show(summary, rule.rule, tilt, output.out)


def _learned(run: Path, output: options.OutputOptions) -> None:
    """The learned Γ of a run; by segments too, where its data are still there."""
    with quick_imports():
        from puidrec.comparing.job import RunData
        from puidrec.data.sources import load_dataset
        from puidrec.report.gamma import (
            LEARNED_FILES,
            check_target,
            learned_summary,
            learned_tables,
            write_learned,
        )
        from puidrec.run_folder import load_run

    model, _ = load_run(run)
    model.uncertainty()  # refused before any data are read
    if output.out is not None:
        check_target(output.out, LEARNED_FILES)
    with steps("reading") as step:
        own = RunData.of(run)
        tables: Sequence[Any] = ()
        if own.source is not None:
            loaded = load_dataset(own.source.name, own.source.folder, **own.source.options)
            own.require(loaded)
            tables = (loaded.users, loaded.items)
        step("asking the posterior")
        table = learned_tables(model, tables)
        summary = learned_summary(model, table)
        if output.out is not None:
            write_learned(table, summary, own.name, output.out)
    if output.as_json:
        print_json(summary)
        return
    for side in ("users", "items"):
        _show_learned(side, summary[side])
    rows = [(f"{one['kind']} = {one['name']}", *_interval(one)) for one in summary["segments"][:12]]
    if rows:
        print_table("Segments, largest Γ first", ("segment", *INTERVAL), rows)
    say(
        "high/low: ends of the median 90 % interval. below, above: the whole interval says that unseen ratings are "
        "lower or higher than the log says; open: it holds Γ = 1. fit: share of the uncertainty that is error "
        "of the fit.\n"
    )
    say(summary["sentence"], bold=True)
    if output.out is not None:
        say(f"wrote {output.out}: report.html, gamma.parquet, summary.json, a chart")


INTERVAL = ("Γ", "low", "high", "unseen are", "uniform rows")


def _interval(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        *(f"{row[key]:.2f}" for key in ("gamma", "low", "high")),
        row["direction"],
        f"{row['rows']:,}",
    )


def _show_learned(side: str, own: dict[str, Any]) -> None:
    spread, sure = own["gamma"], own["direction"]
    print_table(
        f"Learned Γ of {own['number']:,} {side}",
        ("", "25 %", "median", "75 %", "95 %", "high/low", "below", "above", "open", "fit"),
        [
            (
                "Γ",
                *(f"{spread[key]:.2f}" for key in ("q25", "q50", "q75", "q95")),
                f"{own['width']:.2f}",
                *(f"{sure[word]:,}" for word in ("below", "above", "open")),
                f"{own['share_of_the_fit']:.0%}",
            )
        ],
    )
    if own["largest"]:
        rows = [(str(one["name"]), *_interval(one)) for one in own["largest"]]
        print_table(f"{side.capitalize()} with the largest Γ", (side[:-1], *INTERVAL), rows)


def _tilt(data: Dataset, propensity: str, protocol: str, seed: int) -> str:
    """The tilt that uniform rows measure, in words; empty without enough of them."""
    from puidrec.exposure.tilt import measure_tilt

    try:
        return measure_tilt(data, propensity=propensity, protocol=protocol, rng=seed).sentence
    except InputError:
        return ""  # no uniform rows, or too few


def _show(summary: dict[str, Any], rule: str, tilt: str, out: Path | None) -> None:
    """Print the study as tables."""
    data, spread, printed = summary["data"], summary["gamma"], summary["printed_equation"]
    basis = (
        f"{spread['pairs']:,} pairs drawn at random"
        if spread["sampled"]
        else f"all {spread['pairs']:,} pairs"
    )
    print_table(
        f"Γ of {data['name']} under rule {rule}, over {basis}",
        ("", "min", "25 %", "median", "75 %", "95 %", "max", "raised to 1", "at the cap"),
        [
            (
                "Γ",
                *(f"{spread[key]:.3f}" for key in ("min", "q25", "median", "q75", "q95", "max")),
                f"{spread['share_raised_to_one']:.1%}",
                f"{spread['share_at_cap']:.1%}",
            )
        ],
    )
    _show_entropies(summary["entropies"])
    say(
        f"The printed equation, {printed['alpha']:g}·gain of users + {printed['beta']:g}·gain of items, is "
        f"{printed['value']:.4f}: below 1, hence no valid Γ, for {printed['share_below_one']:.0%} of the pairs "
        f"({printed['share_below_one_local']:.1%} with each pair's own gains instead of the averages).\n"
    )
    _show_calibration(summary["calibration"])
    _show_certificates(summary)
    say(f"Do people pick what they like? {summary['sign']['sentence']}\n")
    if tilt:
        say(f"Measured tilt: {tilt}\n")
    say(summary["sentence"], bold=True)
    if out is not None:
        say(f"wrote {out}: report.html, gamma.parquet, summary.json, two charts")


def _show_entropies(entropies: dict[str, dict[str, Any]]) -> None:
    keys = ("H", "H_given_user", "H_given_both", "gain_user", "gain_item")
    names = {"plugin": "plug-in", "miller-madow": "Miller–Madow", "permutation": "permutation"}
    rows = [
        (names[name], *(f"{facts[key]:.{5 if key.startswith('gain') else 4}f}" for key in keys))
        for name, facts in entropies.items()
    ]
    chance = entropies["permutation"]
    ranges = [
        f"{chance[side]['low']:.4f}–{chance[side]['high']:.4f}"
        for side in ("chance_user", "chance_item")
    ]
    print_table(
        "Entropy of exposure in nats, and what features take off it",
        ("estimator", "H(o)", "H(o|user)", "H(o|both)", "gain of users", "gain of items"),
        [*rows, ("by chance", "", "", "", *ranges)],
    )


def _show_calibration(rows: list[dict[str, Any]]) -> None:
    from puidrec.report.formatting import clip_text

    if not rows:
        say("No features: there is nothing to hide, so Γ cannot be calibrated by hiding.\n")
        return
    print_table(
        "What hiding one recorded feature is worth",
        ("feature", "of", "Γ, mean pair", "Γ, 1 pair in 10", "gain in nats"),
        [
            (
                clip_text(row["feature"], 32),
                f"{row['side']}s",
                f"{row['gamma_mean']:.3f}",
                f"{row['gamma_90']:.3f}",
                f"{row['gain']:+.5f}",
            )
            for row in rows
        ],
    )


def _show_certificates(summary: dict[str, Any]) -> None:
    found = summary["certificates"]
    if not found:
        say("No uniform rows: nothing in these data proves how large Γ must be.\n")
        return
    plain, adjusted = (
        [proof for proof in found if proof["adjusted"] is wanted] for wanted in (False, True)
    )
    table = [row for pair in zip(plain, adjusted, strict=True) for row in _certificate_rows(*pair)]
    print_table(
        "What the uniform rows of unseen pairs prove: lower limits of Γ",
        ("event", "unseen", "seen", "Γ ≥", "seen*", "Γ* ≥", "estimate*"),
        table,
    )
    say(
        "(un)seen: share of such ratings. Limits hold together with 95 % confidence. "
        f"*: with what propensity {summary['certificate_rows']['propensity']} explains taken out. Estimates are biased "
        "upward and used for nothing.\n"
    )
    _show_segments(adjusted[-1]["segments"])


def _show_segments(segments: list[dict[str, Any]]) -> None:
    from puidrec.report.formatting import clip_text

    proved = [row for row in segments if row["lower"] > 1.0]
    if not segments:
        return
    if not proved:
        say(
            f"In none of {len(segments)} segments with 50 or more uniform rows do they prove more than Γ = 1.\n"
        )
        return
    print_table(
        f"Segments in which the uniform rows prove Γ > 1 ({len(proved)} of {len(segments)} with 50 rows or more)",
        ("segment", "of", "uniform rows", "Γ* ≥", "p (Holm)"),
        [
            (
                clip_text(row["name"], 40),
                f"{row['side']}s",
                f"{row['n_uniform']:,}",
                f"{row['lower']:.3f}",
                f"{row['p_value']:.2g}",
            )
            for row in proved[:12]
        ],
    )


def _certificate_rows(plain: dict[str, Any], adjusted: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per event, the plain certificate beside the adjusted one; of rating levels, first the
    largest."""
    several = len(adjusted["levels"]) > 1
    rows: list[tuple[str, ...]] = []
    if several:
        rows.append(
            ("any rating", "", "", f"{plain['lower']:.3f}", "", f"{adjusted['lower']:.3f}", "")
        )
    others = {(level["level"], level["highest"]): level for level in plain["levels"]}
    for level in adjusted["levels"]:
        other = others.get((level["level"], level["highest"]))  # the weights may join other levels
        first = ("–", "–") if other is None else (f"{other['seen']:.1%}", f"{other['lower']:.3f}")
        joined = level["highest"] not in (None, level["level"])
        name = f"rating {level['level']:g}" + (f"–{level['highest']:g}" if joined else "")
        own = (f"{level['seen']:.1%}", f"{level['lower']:.3f}", f"{level['gamma']:.2f}")
        rows.append((name if several else "liked", f"{level['unseen']:.1%}", *first, *own))
    return rows
