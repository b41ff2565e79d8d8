"""A program as Python source: what a user's script looks like, with the fault's line known."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.faults import Fault, fill
from fuzz.layers import POOLS, STEMS, template_of
from fuzz.loops import write_loop, write_optimizer
from fuzz.page import Page
from fuzz.programs import Layer, Program

SIZES = {
    "vectors": ("FEATURES = 5",),
    "sequences": ("FEATURES, TIME = 4, 5",),
    "tokens": ("VOCABULARY, TIME = 11, 5",),
    "images": ("CHANNELS, SIDE = 2, 6",),
}
INPUTS = {
    "vectors": "dice.standard_normal((ROWS, FEATURES))",
    "sequences": "dice.standard_normal((ROWS, TIME, FEATURES))",
    "tokens": "dice.integers(0, VOCABULARY, (ROWS, TIME))",
    "images": "dice.standard_normal((ROWS, CHANNELS, SIDE, SIDE))",
}
TARGETS = {
    "regression": "dice.standard_normal((ROWS, 1))",
    "classification": "dice.integers(0, 3, ROWS)",
    "multilabel": "dice.integers(0, 2, (ROWS, 3)) * 1.0",
}
LOSSES = {
    "regression": "loss = F.mse_loss(out, y)",
    "classification": "loss = F.cross_entropy(out, y)",
    "multilabel": "loss = F.binary_cross_entropy_with_logits(out, y)",
}


@dataclass(frozen=True)
class Script:
    """Source, and the lines that matter in it."""

    source: str
    marks: dict[str, tuple[int, ...]]

    @property
    def culprits(self) -> tuple[int, ...]:
        """Lines of the fault, 1-based; empty when there is none or when no line is to blame."""
        return self.marks.get("culprit", ())


def render(program: Program, *, witnessed: bool = False) -> Script:
    """The program's source.

    `witnessed`: with calls of `WITNESS` in it, which the namespace has to provide; lines then differ.
    """
    page = Page()
    page.write("import numpy as np", "import torch", "import torch.nn.functional as F", "from torch import nn")
    if program.data != "list":
        page.write("from torch.utils.data import DataLoader, Dataset, TensorDataset")
    page.write("", f"torch.manual_seed({program.seed})")
    page.write(f"BATCH, ROWS = {program.batch}, {program.batch * program.micro_batches}", *SIZES[program.shape], "", "")
    _write_function_of_its_own(page, program)
    _write_model(page, program, witnessed)
    _write_data(page, program)
    _write_loss(page, program)
    if program.form == "contract":
        with page.block("def build_model():"):
            page.write("return Net()")
        page.write("", "")
        with page.block("def build_optimizer(model):"):
            page.write("return " + write_optimizer(program))
    else:
        write_loop(page, program, witnessed)
    return Script(page.text, page.marks)


def _write_function_of_its_own(page: Page, program: Program) -> None:
    if program.fault is None or program.fault.kind != "bad_gradient":
        return
    with page.block("class Halve(torch.autograd.Function):"):
        page.write("@staticmethod")
        with page.block("def forward(ctx, h):"):
            page.write("ctx.save_for_backward(h)", "return h / 2")
        page.write("", "@staticmethod")
        with page.block("def backward(ctx, grad):"):
            page.write("(h,) = ctx.saved_tensors", "*return grad / (h - h)")
    page.write("", "")


def _write_model(page: Page, program: Program, witnessed: bool) -> None:
    with page.block("class Net(nn.Module):"):
        with page.block("def __init__(self):"):
            page.write("super().__init__()", "self.calls = 0")
            _write_template(page, STEMS[program.shape].init, program, 0)
            for n, layer in enumerate(program.layers):
                _write_template(page, template_of(layer.kind).init, program, n)
            page.write(f"self.head = nn.Linear({program.width}, {program.outputs})")
            if program.backwards:
                page.write("self._modules = dict(reversed(self._modules.items()))")
        page.write("")
        with page.block("def forward(self, x):"):
            page.write("self.calls += 1")
            if program.fault is not None and program.fault.kind == "zero_row":
                page.write(*program.fault.about.lines)
            if program.precision in ("half", "masters") and program.shape != "tokens":
                page.write("x = x.half()")
            _write_template(page, STEMS[program.shape].forward, program, 0)
            page.mark("stem")
            for n, layer in enumerate(program.layers):
                _write_forward_fault(page, program, n, witnessed)
                _write_template(page, template_of(layer.kind).forward, program, n, layer)
            _write_forward_fault(page, program, len(program.layers), witnessed)
            if (pool := POOLS[program.shape]) is not None:
                page.write(pool)
            page.write("return self.head(h)" + (".float()" if program.precision in ("half", "masters") else ""))
    page.write("", "")


def _write_template(page: Page, lines: tuple[str, ...], program: Program, n: int, layer: Layer | None = None) -> None:
    page.write(*(line.format(n=n, w=program.width, act=layer.activation if layer else "") for line in lines))


def _write_forward_fault(page: Page, program: Program, position: int, witnessed: bool) -> None:
    fault = program.fault
    if fault is None or fault.about.place != "forward" or min(fault.after, len(program.layers)) != position:
        return
    lines = [fill(line, fault) for line in fault.about.lines]
    if witnessed:
        lines.append(f"WITNESS.fault({fault.about.witnessed})")
    _write_gated(page, program, fault, lines)


def _write_gated(page: Page, program: Program, fault: Fault, lines: list[str]) -> None:
    calls = fault.step * program.accumulation
    if not fault.about.gated or not calls:
        page.write(*lines)
        return
    with page.block(f"if {'self' if fault.about.place == 'forward' else 'model'}.calls > {calls}:"):
        page.write(*lines)


def _write_data(page: Page, program: Program) -> None:
    if program.data == "rows":
        with page.block("class Rows(Dataset):"):
            with page.block("def __init__(self, x, y):"):
                page.write("self.x, self.y = x, y")
            page.write("")
            with page.block("def __len__(self):"):
                page.write("return len(self.x)")
            page.write("")
            with page.block("def __getitem__(self, index):"):
                page.write("return {'x': self.x[index], 'y': self.y[index]}")
        page.write("", "")
    with page.block("def build_data():"):
        page.write(f"dice = np.random.default_rng({program.seed})")
        page.write(f"x = {INPUTS[program.shape]}", f"y = {TARGETS[program.task]}")
        for line in _spoilt(program):
            page.marked("spoilt", line)
        page.write(f"x = torch.from_numpy(x){'' if program.shape == 'tokens' else '.float()'}")
        page.write(f"y = torch.from_numpy(y){'' if program.task == 'classification' else '.float()'}")
        page.write(
            {
                "list": "return list(zip(x.split(BATCH), y.split(BATCH)))",
                "loader": "return DataLoader(TensorDataset(x, y), batch_size=BATCH)",
                "shuffled": "return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)",
                "rows": "return DataLoader(Rows(x, y), batch_size=BATCH, shuffle=True)",
            }[program.data]
        )
    page.write("", "")


def spoilt_row(program: Program) -> int:
    """Index in the data set of the row that a data fault spoils."""
    assert program.fault is not None
    return program.fault.step * program.accumulation * program.batch + program.fault.row


def _spoilt(program: Program) -> list[str]:
    """Lines that put a fault into the data."""
    if program.fault is None:
        return []
    row = spoilt_row(program)
    column = "" if program.task == "classification" else ", 0"
    return {
        "nan_input": [f"x[{row}].flat[{program.fault.column}] = np.nan"],
        "inf_input": [f"x[{row}].flat[{program.fault.column}] = np.inf"],
        "absurd_input": [f"x[{row}].flat[{program.fault.column}] = 3e38"],
        "nan_target": [f"y[{row}{column}] = np.nan"],
        "bad_label": [f"y[{row}] = 3"],
        "bad_token": [f"x[{row}, 1] = VOCABULARY"],
        "labels_ignored": [f"y[{row - row % program.batch}:{row - row % program.batch + program.batch}] = -100"],
        "zero_row": [f"x[{row}] = 0.0"],
    }.get(program.fault.kind, [])


def _write_loss(page: Page, program: Program) -> None:
    with page.block("def compute_loss(model, batch):"):
        page.write("x, y = batch['x'], batch['y']" if program.data == "rows" else "x, y = batch")
        page.write("out = model(x)")
        page.marked("loss", LOSSES[program.task])
        fault = program.fault
        if fault is not None and fault.about.place == "loss":
            _write_gated(page, program, fault, [fill(line, fault) for line in fault.about.lines])
        weight = {"gradient_overflow": "1e4", "gradient_flushed": "1e-3"}.get(fault.kind if fault is not None else "")
        if weight is not None:
            page.write(f"loss = loss * {weight}")
        page.write("return loss")
    page.write("", "")
