"""A sweep as JUnit XML: whether a safe scale exists, and whether the script uses one."""

from __future__ import annotations

from nanprobe.findings import Status
from nanprobe.loss_scale.conflict import find_conflict
from nanprobe.loss_scale.result import Confirmation, SweepResult
from nanprobe.reports.junit.cases import TestCase, render_suite
from nanprobe.reports.numbers import show_scale
from nanprobe.reports.terminal.header import show_target

GROUP = "nanprobe.loss_scale"
EXISTS, IN_USE = "a safe loss scale exists", "the loss scale in use is safe"


class SweepJunitReport:
    """A suite of two cases, always the same ones."""

    def render(self, result: SweepResult) -> str:
        """The document, ending in a newline."""
        return render_suite(f"nanprobe sweep-scale {show_target(result.run.target)}", _list_cases(result))


def _list_cases(result: SweepResult) -> list[TestCase]:
    reasons, window = "; ".join(result.reasons), result.window
    text = "\n".join([*result.reasons, *_list_advice(result), f"run: {result.run.directory}"])
    if result.status is Status.INCONCLUSIVE:
        return [TestCase(EXISTS, GROUP, error=(reasons, text)), TestCase(IN_USE, GROUP, skipped=reasons)]
    if window is None or find_conflict(window) is not None:
        return [TestCase(EXISTS, GROUP, failure=(reasons, text)), TestCase(IN_USE, GROUP, skipped=reasons)]
    safe = f"{show_scale(window.lowest_scale)} to {show_scale(window.highest_scale)}"
    told = "\n".join([f"safe: {safe}", *map(_describe_confirmation, result.confirmations)])
    failed = (reasons, text) if result.status is Status.FAILING else None
    return [
        TestCase(EXISTS, GROUP, output=told),
        TestCase(IN_USE, GROUP, failure=failed, output=_describe_scaler(result)),
    ]


def _list_advice(result: SweepResult) -> list[str]:
    advice = result.advice
    if advice is None:
        return []
    return [advice.why, *([advice.code] if advice.code else []), *advice.remedies]


def _describe_confirmation(each: Confirmation) -> str:
    came = "as predicted" if each.agrees else "not as predicted"
    return f"real run at {show_scale(each.real.scale)}, the {each.edge} edge: {came}"


def _describe_scaler(result: SweepResult) -> str:
    scaler = result.scaler
    if scaler is None or not scaler.scales:
        return ""
    whose = "the script's scaler" if scaler.as_written else "a scaler with PyTorch's defaults"
    scales = f"{show_scale(scaler.scales[0])} in the first step, {show_scale(scaler.scales[-1])} in the last"
    return f"{whose}: {scales}, {scaler.skipped_steps} of {len(scaler.skipped)} steps skipped"
