"""Errors in which PyTorch itself names the misuse: refused by GradScaler, autocast, autograd or a loss function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from nanprobe.diagnosis.call_rules import CLEARS
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.graph import with_fix
from nanprobe.diagnosis.graph_faults import Fault
from nanprobe.diagnosis.graph_fixes import distribution_fix, function_of, module_name
from nanprobe.diagnosis.scene import base_severity
from nanprobe.diagnosis.wording import times
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, ErrorRecord, Phase, StageTrace


def explain(trace: StageTrace) -> Finding | None:
    """The finding for an exception in which PyTorch itself names the misuse; None for any other exception."""
    error = trace.error
    if error is None:
        return None
    for signs, explain in _REFUSALS:
        if all(sign in error.message for sign in signs):
            return explain(trace, error)
    return None


def refused_autocast(trace: StageTrace) -> str | None:
    """What PyTorch said when it refused the script's own code under an autocast that nanprobe put around it.

    None when the stage ended otherwise, or autocast is the script's: two tensors of different formats that meet are
    then a fault of the script, else of where nanprobe put autocast.
    """
    error = trace.error
    if error is None or trace.as_written or trace.facts.get("autocast") != "nanprobe" or explain(trace) is not None:
        return None
    if error.kind not in ("RuntimeError", "TypeError", "NotImplementedError") or not _FORMATS.search(error.message):
        return None
    place = f" at {error.source.file.rpartition('/')[2]}:{error.source.line}" if error.source else ""
    return f"{error.kind}: {' '.join(error.message.split())[:160]}{place}"


_FORMATS = re.compile(r"\bdtypes?\b|scalar type|\b(Half|BFloat16)\b|same type|data type")


def _singular(trace: StageTrace, error: ErrorRecord) -> Finding | None:
    """NP415: a matrix that has no decomposition; one with NaN in it has another cause, which the walk back finds."""
    if "non-finite" in error.message or "NaN" in error.message:
        return None
    name = error.message.partition(":")[0].removeprefix("torch.") or "the decomposition"
    function = function_of((name.replace(".", "_"),))[1]
    return _at_edge(trace, error, "NP415", name, f"{name} of a singular matrix", function.fix if function else None)


def _outside_support(trace: StageTrace, error: ErrorRecord) -> Finding | None:
    """NP417: a parameter or sample of a distribution that is finite and still not allowed."""
    given = " ".join(error.message.partition("found invalid values")[2].strip(": \n").split())
    if "nan" in error.message or "inf" in given:
        return None
    named = re.search(r"distribution (\w+)\(", error.message)
    name = named[1] if named else "the distribution"
    asked = re.match(r"Expected (parameter \w+|value argument)", error.message)
    what = (asked[1] if asked else "an argument").replace("value argument", "a sample")
    domain = f"{what} outside what {name} is defined for" + (f" ({given[:60]})" if given else "")
    return _at_edge(trace, error, "NP417", name, domain, distribution_fix(module_name(name)) if named else None)


def _one_sample(trace: StageTrace, error: ErrorRecord) -> Finding:
    """NP413: a normalisation that has one number to normalise."""
    size = error.message.partition("got input size")[2].strip().removeprefix("torch.Size(").rstrip(")")
    per = "one value a channel has no variance" + (f" (input of size {size})" if size else "")
    spatial = "spatial" in error.message
    fix = "give the layer inputs of more than one position, or leave it out there" if spatial else None
    return _at_edge(trace, error, "NP413", "instance_norm" if spatial else "batch_norm", per, fix)


def _no_probability(trace: StageTrace, error: ErrorRecord) -> Finding:
    """NP412: a binary cross-entropy of something that is no probability."""
    return _at_edge(trace, error, "NP412", "binary_cross_entropy", "a probability outside [0, 1]", None)


def _at_edge(trace: StageTrace, error: ErrorRecord, code: str, name: str, domain: str, fix: str | None) -> Finding:
    found = _refusal(trace, error, code, {"where": _line(error), "domain": domain, "op": name})
    return with_fix(found, Fault(code, name, domain, fix))


def _line(error: ErrorRecord) -> str:
    return f"line {error.source.line}" if error.source else "the script"


def _bce(trace: StageTrace, error: ErrorRecord) -> Finding:
    # Put around by nanprobe, autocast is no decision of the script's: it may live without.
    severity = base_severity(trace) if trace.as_written else Severity.WARNING
    return _refusal(trace, error, "NP609", {}, severity)


def _half_with_scaler(trace: StageTrace, error: ErrorRecord) -> Finding:
    dtype = next((p.dtype for p in trace.parameters if p.dtype in ("float16", "bfloat16")), "float16")
    return _refusal(trace, error, "NP610", {"dtype": dtype})


def _unscaled_twice(trace: StageTrace, error: ErrorRecord) -> Finding:
    """Left early (NP617) when gradients were cleared in between, else once for each micro-batch (NP605)."""
    pair = _last_two_unscales(trace)
    between = trace.calls[pair[0] + 1 : pair[1]] if pair else ()
    cleared = any(c.name in CLEARS for c in between)
    complete = any(c.name == "scaler.update" for c in trace.calls[: pair[0]]) if pair else False
    first: CallRecord | None = trace.calls[pair[0]] if pair else None
    code = "NP617" if cleared or complete else "NP605"
    found = _refusal(trace, error, code, {})
    if first is None or first.source is None:
        return found
    return compose(
        trace,
        code,
        severity=found.severity,
        slots={},
        step=first.step,
        phase=Phase.CALLS,
        source=first.source,
        evidence=found.evidence,
        why=found.why,
    )


def _last_two_unscales(trace: StageTrace) -> tuple[int, int] | None:
    positions = [k for k, c in enumerate(trace.calls) if c.name == "scaler.unscale_"]
    return (positions[-2], positions[-1]) if len(positions) >= 2 else None


def _never_scaled(trace: StageTrace, error: ErrorRecord) -> Finding:
    """NP619: `scaler.step` with no `scaler.scale` before it, at the backward call that should have had one."""
    found = _refusal(trace, error, "NP619", {"scale": "a loss scale that was never set"})
    call = next((c for c in reversed(trace.calls) if c.name == "backward"), None)
    return found if call is None or call.source is None else replace(found, source=call.source)


def _updated_without_step(trace: StageTrace, error: ErrorRecord) -> Finding:
    steps = sum(c.name == "scaler.step" for c in trace.calls)
    updates = 1 + sum(c.name == "scaler.update" for c in trace.calls)
    return _refusal(
        trace,
        error,
        "NP604",
        {"call": "scaler.update()", "calls": times(updates), "rounds": f"{steps} optimizer steps"},
    )


def _not_updated(trace: StageTrace, error: ErrorRecord) -> Finding:
    """A second round before the first was closed: `update` is never called (NP603), or was left out here (NP617)."""
    steps = [c for c in trace.calls if c.name == "scaler.step"]
    updates = any(c.name == "scaler.update" for c in trace.calls)
    guilty = steps[-1 if updates else 0] if steps else None
    left_open = replace(error, step=guilty.step, source=guilty.source) if guilty is not None else error
    return _refusal(trace, left_open, "NP617" if updates else "NP603", {"steps": len(steps)})


def _constant_too_large(trace: StageTrace, error: ErrorRecord) -> Finding:
    return _refusal(trace, error, "NP109", {"dtype": trace.dtype, "message": error.message.strip()[:80]})


def _out_of_range(trace: StageTrace, error: ErrorRecord) -> Finding:
    message = error.message.strip().splitlines()[0][:120]
    slots: dict[str, object] = {
        "what": message,
        "range": "[0, number of classes)",
        "hint": "count the classes, or pass ignore_index for the marker",
    }
    return _refusal(trace, error, "NP302", slots)


def _without_gradients(trace: StageTrace, error: ErrorRecord) -> Finding:
    wanting = tuple(p.name for p in trace.parameters if p.requires_grad)
    return _refusal(trace, error, "NP607", {"parameters": f"{len(wanting)} parameters", "steps": len(trace.steps) + 1})


def _refusal(
    trace: StageTrace, error: ErrorRecord, code: str, slots: dict[str, object], severity: Severity | None = None
) -> Finding:
    return compose(
        trace,
        code,
        severity=severity or base_severity(trace),
        slots=slots,
        step=error.step,
        phase=Phase.CALLS,
        source=error.source,
        evidence={"exception": error.kind, "message": error.message[:200]},
        why=f"PyTorch stopped the script: {error.kind}: {error.message.strip()[:200]}",
    )


# Fragments of PyTorch's messages. Source: torch/amp/grad_scaler.py, aten/src/ATen/autocast_mode.cpp,
# c10/util/TypeCast.h; the same text from 1.10 to 2.13.
_REFUSALS: tuple[tuple[tuple[str, ...], Callable[[StageTrace, ErrorRecord], Finding | None]], ...] = (
    (("binary_cross_entropy", "autocast"), _bce),
    (("Attempting to unscale FP16 gradients",), _half_with_scaler),
    (("unscale_() has already been called",), _unscaled_twice),
    (("unscale_() is being called after step()",), _not_updated),
    (("step() has already been called since the last update()",), _not_updated),
    (("did not use scaler.scale(loss or outputs)",), _never_scaled),
    (("No inf checks were recorded prior to update",), _updated_without_step),
    (("linalg.",), _singular),
    (("all elements of input should be between 0 and 1",), _no_probability),
    (("all elements of target should be between 0 and 1",), _out_of_range),
    (("to satisfy the constraint", "found invalid values"), _outside_support),
    (("to be within the support", "found invalid values"), _outside_support),
    (("Expected more than 1 value per channel",), _one_sample),
    (("Expected more than 1 spatial element",), _one_sample),
    (("No inf checks were recorded for this optimizer",), _without_gradients),
    (("does not require grad and does not have a grad_fn",), _without_gradients),
    (("Target", "is out of bounds"), _out_of_range),
    (("index out of range in self",), _out_of_range),
    (("device-side assert triggered",), _out_of_range),
    (("cannot be converted to type", "Half without overflow"), _constant_too_large),
)
