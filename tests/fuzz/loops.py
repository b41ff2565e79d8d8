"""The training loop of a program, with the calls of AMP in the right order, or in a wrong one."""

from __future__ import annotations

from fuzz.faults import fill
from fuzz.page import Page
from fuzz.programs import Program

OPTIMIZERS = {
    "sgd": "torch.optim.SGD({p}, lr={lr})",
    "momentum": "torch.optim.SGD({p}, lr={lr}, momentum=0.9, weight_decay=1e-4)",
    "adam": "torch.optim.Adam({p}, lr={lr}{eps})",
    "adamw": "torch.optim.AdamW({p}, lr={lr}{eps})",
    "rmsprop": "torch.optim.RMSprop({p}, lr={lr}{eps})",
}
RATES = {"sgd": 0.05, "momentum": 0.02, "adam": 1e-3, "adamw": 1e-3, "rmsprop": 1e-3}


def write_optimizer(program: Program) -> str:
    """The optimizer as an expression of `model`, or of `masters` where there are copies."""
    rate = RATES[program.optimizer]
    kind = program.fault.kind if program.fault is not None else None
    if program.fault is not None and kind == "huge_rate":
        rate = 2.0**program.fault.bits
    if kind == "update_swallowed":
        rate = 1e-6
    # Adam's eps of 1e-8 is 0 in FP16: a program that is to be right takes one that is not.
    eps = ", eps=1e-4" if program.precision == "half" and kind != "adam_eps" else ""
    parameters = "masters" if program.precision == "masters" else "model.parameters()"
    return OPTIMIZERS[program.optimizer].format(p=parameters, lr=f"{rate:g}", eps=eps)


def write_loop(page: Page, program: Program, witnessed: bool) -> None:
    """Model, optimizer and loop of a script."""
    kind = program.fault.kind if program.fault is not None else ""
    half = program.precision in ("half", "masters")
    page.write("model = Net()" + (".half()" if half else ""))
    if program.precision == "masters":
        page.write("masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]")
    page.marked("optimizer", "optimizer = " + write_optimizer(program))
    if scales(program):
        page.marked("scaler", f'scaler = torch.amp.GradScaler("cpu", init_scale={program.init_scale!r})')
    if kind == "loop_in_autocast":
        with page.block("*with torch.autocast('cpu', dtype=torch.float16):"):
            _write_epoch(page, program, witnessed)
    else:
        _write_epoch(page, program, witnessed)


def scales(program: Program) -> bool:
    """Whether the script has a GradScaler."""
    wrongly = program.fault is not None and program.fault.kind == "scaler_with_bf16"
    return (program.precision == "amp" and program.scaler) or wrongly


def _write_epoch(page: Page, program: Program, witnessed: bool) -> None:
    kind = program.fault.kind if program.fault is not None else ""
    accumulates = program.accumulation > 1
    with page.block(
        "for number, batch in enumerate(build_data(), 1):" if accumulates else "for batch in build_data():"
    ):
        if kind == "nan_rate":
            assert program.fault is not None
            with page.block(f"if model.calls >= {program.fault.step * program.accumulation}:"):
                page.write("optimizer.param_groups[0]['lr'] = float('nan')")
        if program.precision in ("amp", "bf16") and kind != "loop_in_autocast":
            dtype = "float16" if program.precision == "amp" else "bfloat16"
            with page.block(f"with torch.autocast('cpu', dtype=torch.{dtype}):"):
                page.write("loss = compute_loss(model, batch)")
        else:
            page.write("loss = compute_loss(model, batch)")
        if kind == "loss_cut_off":
            page.write("loss = loss.detach().requires_grad_()")
        if accumulates:
            page.write(f"loss = loss / {program.accumulation}")
        _write_backward(page, program)
        if witnessed:
            page.write(f"WITNESS.backward(model, loss, {_scale(program)})")
        if kind == "step_each_micro_batch":
            _write_step(page, program, clear=False)
            with page.block(f"if number % {program.accumulation} == 0:"):
                page.write("optimizer.zero_grad()")
        elif accumulates:
            with page.block(f"if number % {program.accumulation} == 0:"):
                _write_step(page, program)
            if kind == "update_each_micro_batch":
                page.write("*scaler.update()")
        else:
            _write_step(page, program)
        if witnessed:
            page.write("WITNESS.update(model)")


def _write_backward(page: Page, program: Program) -> None:
    if scales(program):
        page.marked("backward", "scaler.scale(loss).backward()")
    elif program.precision == "masters":
        page.marked("backward", "(loss * 128).backward()")
    else:
        page.marked("backward", "loss.backward()")
    if program.fault is not None and program.fault.kind == "never_cleared":
        page.mark("culprit")


def _write_step(page: Page, program: Program, clear: bool = True) -> None:
    kind = program.fault.kind if program.fault is not None else ""
    if program.precision == "masters":
        with page.block("for master, p in zip(masters, model.parameters()):"):
            page.write("master.grad = p.grad.float() / 128 if p.grad is not None else None")
    _write_clipping(page, program, kind)
    _write_fault(page, program, "before")
    blamed = kind in ("step_each_micro_batch", "no_update", "nan_rate", "adam_eps")
    if scales(program) and kind != "step_scaled":
        page.write("*scaler.step(optimizer)" if blamed else "scaler.step(optimizer)")
    else:
        page.write("*optimizer.step()" if blamed or kind == "step_scaled" else "optimizer.step()")
    if scales(program) and kind not in ("no_update", "update_each_micro_batch"):
        page.write("scaler.update()")
    _write_fault(page, program, "after")
    if program.precision == "masters":
        page.write("with torch.no_grad():", "+for master, p in zip(masters, model.parameters()):", "++p.copy_(master)")
        if clear and kind != "never_cleared":
            page.write("model.zero_grad()")
    elif clear and kind != "never_cleared":
        page.write("optimizer.zero_grad()")


def _write_fault(page: Page, program: Program, place: str) -> None:
    """The lines of a fault between backward and the end of the step."""
    fault = program.fault
    if fault is not None and fault.about.place == place:
        with page.block(f"if model.calls > {fault.step * program.accumulation}:"):
            page.write(*(fill(line, fault) for line in fault.about.lines))


def _write_clipping(page: Page, program: Program, kind: str) -> None:
    if program.clip is None:
        return
    if scales(program) and kind not in ("clip_scaled", "step_scaled"):
        page.write("scaler.unscale_(optimizer)")
    parameters = "masters" if program.precision == "masters" else "model.parameters()"
    call = {
        "norm": f"nn.utils.clip_grad_norm_({parameters}, 1.0)",
        "value": f"nn.utils.clip_grad_value_({parameters}, 0.5)",
    }[program.clip]
    page.write(("*" if kind == "clip_scaled" else "") + call)


def _scale(program: Program) -> str:
    """The factor in the gradients, as an expression."""
    if scales(program):
        return "scaler.get_scale()"
    return "128.0" if program.precision == "masters" else "1.0"
