"""Scalers at work: what the script's did step by step, what others would do, and which growth interval costs what."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.loss_scale.advice import show_power
from nanprobe.loss_scale.replay import PolicyOutcome, Spread
from nanprobe.loss_scale.result import ScalerHistory, SweepResult
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_number, show_percent
from nanprobe.reports.terminal.canvas import Canvas, clean, pad, shorten_middle

STRETCHES = 8  # of one scale, shown; the middle of a longer history is left out
NAME_WIDTH = 18
INDENT, GAP = 2, 2
WIDE = 110


def draw_script_scaler(canvas: Canvas, result: SweepResult) -> None:
    """The scale by step, the skipped steps, the share that counted."""
    scaler = result.scaler
    if scaler is None or not scaler.scales:
        return
    canvas.heading("YOUR GRADSCALER" if scaler.as_written else "GRADSCALER PUT AROUND THE SCRIPT")
    canvas.rows(list_scaler(scaler))


def list_scaler(scaler: ScalerHistory) -> list[tuple[str, str]]:
    """Its settings, the scale by step, the skipped steps, the share that counted."""
    policy = scaler.policy
    settings = f"init_scale {show_power(policy.init_scale)}, growth_interval {policy.growth_interval:,}"
    settings += f", ×{policy.growth_factor:g} and ×{policy.backoff_factor:g}"
    share = f"{scaler.skipped_steps:,} of {count_noun(len(scaler.skipped), 'step')}"
    return [
        ("settings", settings),
        ("scale by step", describe_stretches(scaler)),
        ("skipped", share),
        ("effective steps", show_percent(scaler.effective_step_fraction)),
    ]


def describe_stretches(scaler: ScalerHistory) -> str:
    """Runs of steps and their scale, as in: 0 to 2: 2^16 (skipped), 3 to 49: 2^13."""
    stretches: list[tuple[int, int]] = []
    for step, scale in enumerate(scaler.scales):
        if stretches and scaler.scales[stretches[-1][0]] == scale:
            stretches[-1] = (stretches[-1][0], step)
        else:
            stretches.append((step, step))
    words = [_describe_stretch(scaler, *stretch) for stretch in stretches]
    if len(words) > STRETCHES:
        half = STRETCHES // 2
        words = [*words[:half], f"… {count_noun(len(words) - STRETCHES, 'more change')} …", *words[-half:]]
    return ", ".join(words)


def _describe_stretch(scaler: ScalerHistory, first: int, last: int) -> str:
    skipped = sum(scaler.skipped[first : last + 1])
    steps = str(first) if first == last else f"{first} to {last}"
    whole = skipped == last - first + 1
    note = "" if not skipped else " (skipped)" if whole else f" ({skipped} skipped)"
    return f"{steps}: {show_power(scaler.scales[first])}{note}"


def draw_policies(canvas: Canvas, result: SweepResult) -> None:
    """What each framework's scaler does to these gradients, over 100,000 steps like the recorded ones."""
    if not result.policies:
        return
    canvas.heading(f"SCALERS OVER {result.bootstrap.get('steps', 0):,} STEPS")
    titles = ["SCALER", "SKIPPED", "EFFECTIVE", "FLUSHED", "LOWEST", "HIGHEST"]
    if canvas.width >= WIDE:
        titles.insert(1, "START")
        titles.insert(2, "INTERVAL")
    _draw_table(canvas, titles, [list_cells(outcome) for outcome in result.policies])
    canvas.paragraph((explain_bootstrap(result), "dim"), indent=INDENT)
    for told in list_stopped(result):
        canvas.paragraph(told, lead=[("▲ ", "yellow")], indent=INDENT)


def explain_bootstrap(result: SweepResult) -> str:
    """How the recorded steps became many."""
    resamples, block = result.bootstrap.get("resamples", 0), result.bootstrap.get("block_length", 0)
    return (
        f"steps drawn from the recorded ones in blocks of {block}, {resamples} times over, seed {result.run.seed}: "
        "mean, and lowest to highest where they differ; true as far as later steps are like these"
    )


def list_stopped(result: SweepResult) -> list[str]:
    """The scalers that give up."""
    return [
        f"{outcome.policy.name} ends the training with an error: the scale cannot go lower"
        for outcome in result.policies
        if outcome.stopped
    ]


def draw_intervals(canvas: Canvas, result: SweepResult) -> None:
    """What each growth interval costs with the advised initial scale; the advised one is marked."""
    if not result.growth_intervals or result.advice is None:
        return
    canvas.heading(f"GROWTH INTERVALS, FROM {show_power(result.advice.init_scale)}")
    rows = []
    for outcome in result.growth_intervals:
        advised = outcome.policy.growth_interval == result.advice.growth_interval
        rows.append(list_cells(outcome) | {"INTERVAL": f"{'▶ ' if advised else ''}{outcome.policy.growth_interval:,}"})
    _draw_table(canvas, ["INTERVAL", "SKIPPED", "EFFECTIVE", "FLUSHED", "LOWEST", "HIGHEST"], rows)


def list_cells(outcome: PolicyOutcome) -> dict[str, str]:
    """What a scaler does, by the title of the column."""
    flushed = outcome.flushed_fraction
    return {
        "SCALER": shorten_middle(clean(outcome.policy.name), NAME_WIDTH),
        "START": show_power(outcome.policy.init_scale),
        "INTERVAL": f"{outcome.policy.growth_interval:,}",
        "SKIPPED": show_spread(outcome.skipped_steps),
        "EFFECTIVE": f"{100 * outcome.effective_step_fraction.mean:.2f}%",
        "FLUSHED": NOT_MEASURED if flushed is None else show_percent(flushed.mean),
        "LOWEST": show_power(outcome.lowest_scale),
        "HIGHEST": show_power(outcome.highest_scale),
    }


def show_spread(spread: Spread) -> str:
    """The mean, and the extremes where they differ."""
    mean = show_number(round(spread.mean))
    if spread.low == spread.high:
        return mean
    return f"{mean} ({show_number(spread.low)}–{show_number(spread.high)})"


def _draw_table(canvas: Canvas, titles: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Columns as wide as their widest cell; the last ones are left out where the terminal is narrow."""
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in titles}
    kept = list(titles)
    while INDENT + sum(widths[title] + GAP for title in kept) - GAP > canvas.width:
        kept.pop()
    left = kept[0]
    line = (" " * GAP).join(pad(title, widths[title], right=title != left) for title in kept)
    canvas.line(" " * INDENT, (line, "dim"))
    for row in rows:
        cells = [pad(row[title], widths[title], right=title != left or left == "INTERVAL") for title in kept]
        canvas.line(" " * INDENT, (" " * GAP).join(cells))
