"""Scalers: what the script's did, what others would do to these gradients, real runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.loss_scale.replay import PolicyOutcome
from nanprobe.loss_scale.result import RealRun, SweepResult
from nanprobe.reports.html.charts import Curve, Lane, step_chart
from nanprobe.reports.html.figures import badge, show_power
from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.html.tables import Column, facts, folded, legend, section, table
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_number, show_percent
from nanprobe.reports.sweep.scalers import show_spread

_POLICY_COLUMNS = (
    Column("scaler"),
    Column("start", number=True),
    Column("interval", number=True),
    Column("skipped", number=True),
    Column("effective", number=True),
    Column("flushed", number=True),
    Column("lowest", number=True),
    Column("highest", number=True),
)


def scaler_section(result: SweepResult) -> Markup:
    """The scale the script used in every step, beside the highest that was safe in it."""
    scaler = result.scaler
    if scaler is None or not scaler.scales:
        return Markup()
    policy = scaler.policy
    settings = f"init_scale {show_power(policy.init_scale)}, growth_interval {policy.growth_interval:,}"
    settings += f", ×{policy.growth_factor:g} and ×{policy.backoff_factor:g}"
    rows = [
        ("settings", settings),
        ("skipped", f"{scaler.skipped_steps:,} of {count_noun(len(scaler.skipped), 'step')}"),
        ("effective steps", show_percent(scaler.effective_step_fraction)),
    ]
    lanes = [Lane("skipped", scaler.skipped, "mark skip")] if scaler.skipped_steps else []
    used = Curve("loss scale", scaler.scales, "curve scale")
    highest = Curve("highest safe", result.step_highest_scales, "curve over")
    chart = step_chart([], lanes, [highest, used], "Loss scale by step, beside the highest safe scale of each step")
    name = "Your GradScaler" if scaler.as_written else "GradScaler put around the script"
    marks = legend([("used", "loss scale"), ("over-line", "highest safe scale of the step")])
    return section(name, "scaler", element("figure", chart), marks, facts(rows))


def policy_section(result: SweepResult) -> Markup:
    """What each framework's scaler does, and what each growth interval costs with the advised start."""
    if not result.policies:
        return Markup()
    steps, resamples = result.bootstrap.get("steps", 0), result.bootstrap.get("resamples", 0)
    lead = (
        f"Over {steps:,} steps drawn from the recorded ones in blocks of {result.bootstrap.get('block_length', 0)}, "
        f"{resamples} times over, seed {result.run.seed}: mean, and lowest to highest where they differ; true as far "
        "as later steps are like these."
    )
    stopped = [
        element("li", f"{outcome.policy.name} ends the training with an error: the scale cannot go lower")
        for outcome in result.policies
        if outcome.stopped
    ]
    return section(
        "Scalers compared",
        "policies",
        table(_POLICY_COLUMNS, [_cells(o.policy.name, o) for o in result.policies], "Scalers compared"),
        element("ul", *stopped, class_="notes") if stopped else None,
        _intervals(result),
        lead=lead,
    )


def _intervals(result: SweepResult) -> Markup | None:
    advice = result.advice
    if not result.growth_intervals or advice is None:
        return None
    title = f"Growth intervals, from {show_power(advice.init_scale)}"
    rows: list[Sequence[Child]] = []
    for outcome in result.growth_intervals:
        advised = outcome.policy.growth_interval == advice.growth_interval
        name = f"{outcome.policy.growth_interval:,}"
        rows.append(
            _cells(join([element("b", name), " ", badge("▶", "advised", "good")]) if advised else name, outcome)
        )
    columns = (Column("interval"), *_POLICY_COLUMNS[3:])
    return join([element("h3", title), table(columns, [[row[0], *row[3:]] for row in rows], title)])


def _cells(name: Child, outcome: PolicyOutcome) -> list[Child]:
    flushed = outcome.flushed_fraction
    return [
        name,
        show_power(outcome.policy.init_scale),
        f"{outcome.policy.growth_interval:,}",
        show_spread(outcome.skipped_steps),
        f"{100 * outcome.effective_step_fraction.mean:.2f}%",
        NOT_MEASURED if flushed is None else show_percent(flushed.mean),
        show_power(outcome.lowest_scale),
        show_power(outcome.highest_scale),
    ]


def run_section(result: SweepResult) -> Markup:
    """Real runs at chosen scales: overflows, flushes, and what became of a few weights."""
    if not result.real_runs:
        return Markup()
    columns = [
        Column("loss scale"),
        *(Column(t, number=True) for t in ("overflowing tensors", "skipped", "flushed", "norm lost")),
    ]
    rows = [
        [
            show_power(run.scale),
            show_number(run.overflowing_tensors),
            f"{run.skipped_steps:,} of {run.steps:,}",
            show_percent(run.flushed_fraction),
            show_percent(run.lost_norm_fraction),
        ]
        for run in result.real_runs
    ]
    early = [
        element("li", f"the run at {show_power(run.scale)} ended early: {run.reason}")
        for run in result.real_runs
        if run.reason is not None
    ]
    return section(
        "Real runs, side by side",
        "runs",
        table(columns, rows, "Real runs"),
        element("ul", *early, class_="notes") if early else None,
        _updates(result.real_runs),
    )


def _updates(runs: Sequence[RealRun]) -> Markup | None:
    rows = [
        [
            element("code", f"{u.parameter}[{', '.join(map(str, u.index))}]"),
            str(u.step),
            show_power(run.scale),
            show_number(u.gradient),
            show_number(u.unscaled_gradient),
            show_number(u.update),
            f"{u.weight_before:.7g}",
            f"{u.weight_after:.7g}",
        ]
        for run in runs
        for u in run.updates
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: (row[0], row[1]))
    titles = ("step", "loss scale", "gradient held", "unscaled", "update", "weight before", "after")
    columns = [Column("weight"), *(Column(title, number=True) for title in titles)]
    return folded(f"{count_noun(len(rows), 'update')} of single weights", table(columns, rows, "Updates of weights"),
                  open_=len(rows) <= 12)  # fmt: skip
