"""Every code nanprobe can report: what it means, how it is found, what to do. No torch here.

`title` and `remedies` are templates; their slots are filled with the numbers of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """One code of the catalogue."""

    code: str  # "NP101"
    kind: Kind
    title: str  # one line with {slots}
    explanation: str  # a paragraph for `nanprobe explain`
    found_by: str  # how nanprobe tells
    remedies: tuple[str, ...]  # what to do, most useful first, with {slots}
    source: str  # where the rule comes from


_IEEE = "IEEE 754-2019, section 3.4: binary16 has 11 significant bits and ends at 65504; 2^-25 and below round to 0."
_AMP = "PyTorch documentation, Automatic Mixed Precision examples (torch.amp.GradScaler)."
_AUTOGRAD = "PyTorch documentation, Autograd mechanics: gradients at the edge of a function's domain."

_ENTRIES = (
    Entry(
        "NP101",
        Kind.OVERFLOW,
        "{where} reaches {value} in the forward pass; {dtype} ends at {limit}",
        "An activation is larger than the number format can hold, so it became Inf. Whatever is computed from it is "
        "Inf, NaN or, behind a reciprocal, exactly 0. No loss scale helps: the forward pass is not scaled.",
        "The same operation on the same numbers in FP32 is finite, and every input was still right.",
        (
            "Run {where} in FP32: `with torch.autocast({device!r}, enabled=False):` around it, with its inputs "
            "`.float()`.",
            "Make the value {times} times smaller: divide before the operation that grows it (line {line}), or "
            "normalise its input.",
            "Use bfloat16, whose range is that of FP32 (max 3.4e38).",
        ),
        _IEEE,
    ),
    Entry(
        "NP102",
        Kind.OVERFLOW,
        "the gradient at {where} is {value} without any loss scale; {dtype} ends at {limit}",
        "A gradient is larger than the number format can hold even after the loss scale is taken out. Lowering the "
        "loss scale to 1 does not save it.",
        "The FP32 re-check of the backward operation, divided by the loss scale, is beyond the format's limit.",
        (
            "Run {where} in FP32, or make the loss {times} times smaller (mean instead of sum, a smaller weight).",
            "Clip or normalise what feeds {where}; clipping gradients afterwards is too late, they are Inf already.",
            "Use bfloat16.",
        ),
        _IEEE,
    ),
    Entry(
        "NP103",
        Kind.OVERFLOW,
        "the loss scale {scale} is too high: gradients at {where} reach {value}, unscaled only {unscaled}",
        "The gradient itself fits the format; multiplied by the loss scale it does not. A GradScaler that finds its "
        "scale in the first steps is healthy. Here it keeps overflowing, or nothing skips the step.",
        "Everything is finite until the scaled gradient leaves the range, and divided by the scale it fits.",
        (
            "Start lower: `GradScaler(init_scale={safe_scale})` fits this gradient with a factor of 2 to spare.",
            "Let the scale grow less often: `growth_interval=2000` (now it overflows in {skipped} of {steps} steps).",
        ),
        _AMP,
    ),
    Entry(
        "NP104",
        Kind.OVERFLOW,
        "the loss itself is {value}; {dtype} ends at {limit}",
        "The loss, or a sum on the way to it, is computed in a format that cannot hold it.",
        "A scalar on the way to the loss is Inf here and finite in the FP32 re-check.",
        (
            "Compute the loss in FP32: `.float()` the inputs of line {line}.",
            "Use a mean instead of a sum ({times} times too large as it is).",
        ),
        _IEEE,
    ),
    Entry(
        "NP105",
        Kind.OVERFLOW,
        "the update makes {where} {value}; {dtype} ends at {limit}",
        "A parameter or a number the optimizer keeps (momentum, squared gradients) left the range of its format.",
        "An operation of the optimizer step is Inf here and finite in the FP32 re-check.",
        ("Keep parameters and optimizer state in FP32 (master weights) and cast copies down for the forward pass.",),
        "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1.",
    ),
    Entry(
        "NP106",
        Kind.OVERFLOW,
        "no loss scale is safe: {where} overflows from {scale}, and at {fits} {other} loses {lost} of its gradient "
        "norm",
        "The gradients of the layers lie further apart than the number format is wide. Whatever the scale, one layer "
        "overflows or another one is flushed to zero.",
        "In one step a parameter's gradient loses at least half of its norm at the highest loss scale at which no "
        "operation of the backward pass overflows: seen at that scale or a higher one, or, because every scaled "
        "gradient is proportional to the scale, at a lower one, when its largest value would still be 0 there.",
        (
            "Run {where} in FP32 (`with torch.autocast({device!r}, enabled=False):`, with its inputs `.float()`), so "
            "that the scale can follow the other layers: {other} needs {wanted_scale}.",
            "Bring the gradients closer together: make the gradient at {where} {times} times smaller (a mean for a "
            "sum, a smaller weight of that part of the loss, other units), or that of {other} as much larger.",
            "Use bfloat16, which needs no loss scale.",
        ),
        _IEEE,
    ),
    Entry(
        "NP107",
        Kind.OVERFLOW,
        "line {line} computes {value} from finite gradients; {dtype} ends at {limit}",
        "The gradients are finite, but a quantity computed from them in low precision, such as their norm, is not. "
        "Clipping by an infinite norm sets every gradient to 0; a scaler that looks at it skips every step.",
        "Between backward and the optimizer step an operation on gradients is Inf here and finite in the re-check.",
        (
            "Compute it in FP32: `p.grad.float()` before squaring (the sum of squares is {value}).",
            "Unscale the gradients first; at loss scale 1 the same quantity is {unscaled}.",
        ),
        _IEEE,
    ),
    Entry(
        "NP108",
        Kind.OVERFLOW,
        "{where} reaches {value}, beyond FP32 (max 3.4e38)",
        "A finite number grew past the range of FP32 itself. Nothing here tells whether the data, the weights or the "
        "learning rate made it grow.",
        "The operation is Inf in FP32 and finite in the FP64 re-check.",
        (
            "Look at the magnitudes that enter line {line}: the largest is {largest}.",
            "Normalise that input, or bound it (`clamp`, `tanh`) before it is raised to a power or multiplied.",
        ),
        "IEEE 754-2019, section 3.4: binary32 ends at 3.4e38.",
    ),
    Entry(
        "NP109",
        Kind.OVERFLOW,
        "a constant on line {line} does not fit {dtype}: {message}",
        "A number written in the script (a mask value such as -1e9) is larger than the format of the tensor it "
        "goes to.",
        "The script was stopped by PyTorch's own range check.",
        (
            "Write `torch.finfo(x.dtype).min` instead of the number, or fill with `float('-inf')` where no row is "
            "masked completely.",
        ),
        _IEEE,
    ),
    Entry(
        "NP201",
        Kind.UNDERFLOW,
        "{lost} of the gradient norm of {where} is flushed to 0 in {dtype}",
        "Gradients smaller than the format's smallest number became exactly 0: the layer does not learn, and nothing "
        "says so. A loss scale moves them into the range.",
        "Elements that are 0 here and not 0 in the FP32 re-check, with their share of the gradient's L2 norm; an error "
        "from half the norm on.",
        (
            "Scale the loss by about {wanted_scale} (`torch.amp.GradScaler(init_scale={wanted_scale})`): the "
            "largest "
            "gradient there is {value} and {dtype} keeps nothing below {smallest}.",
            "Raise the weight of that part of the loss, or run {where} in FP32.",
            "Use bfloat16, which keeps numbers down to 9.2e-41.",
        ),
        _IEEE,
    ),
    Entry(
        "NP202",
        Kind.UNDERFLOW,
        "{swallowed} of the updates of {where} are rounded away: w + dw == w in {dtype}",
        "The update is smaller than half the distance between two neighbouring numbers of the weight's format, so "
        "adding it changes nothing. Training stands still although loss and gradients look well.",
        "Elements the optimizer step changes in the FP32 re-check and not here; an error from 90% of them on.",
        (
            "Keep an FP32 master copy of the weights (or train FP32 weights under autocast): the largest update is "
            "{value}, which {dtype} can only add to weights below {largest_weight}.",
            "Use stochastic rounding or Kahan summation in the optimizer.",
            "A larger learning rate (now {learning_rate}) makes fewer updates disappear, at its own risk.",
        ),
        "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1 (FP32 master copy of weights).",
    ),
    Entry(
        "NP203",
        Kind.UNDERFLOW,
        "{what} is 0 in {dtype} at line {line}, and {consequence}",
        "A small positive number that guards a denominator or a logarithm, or the denominator itself, is below the "
        "format's smallest number and became exactly 0. What follows divides by 0 or takes the logarithm of 0.",
        "Walked back from the Inf or NaN to the first operation that is 0 here and not 0 in the FP32 re-check.",
        (
            "Use a constant that {dtype} can hold, at least {smallest_normal} (e.g. 1e-4), or compute line {line} "
            "in FP32 "
            "(`x.float()`).",
            "For log-probabilities use the fused function (`logsigmoid`, `log_softmax`, "
            "`binary_cross_entropy_with_logits`).",
            "In an optimizer: keep its weights in FP32 (no `.half()`, autocast instead, or a master copy); its state "
            "and its eps are then FP32 as well.",
            "If the weights must stay in {dtype}: an eps it can hold, at least {smallest_normal} "
            "(`torch.optim.Adam(..., eps=1e-4)`); it also damps the steps of small gradients.",
        ),
        _IEEE,
    ),
    Entry(
        "NP204",
        Kind.UNDERFLOW,
        "the loss scale fell to {scale}: {skipped} of {steps} steps were skipped",
        "The scaler halves its scale at every overflow. When the cause is not the scale, it falls until every "
        "gradient is flushed to 0.",
        "The loss scale of the last step is below 1.",
        ("Find what is not finite whatever the scale is; a floor such as `max(scale, 1)` only hides it.",),
        _AMP,
    ),
    Entry(
        "NP205",
        Kind.UNDERFLOW,
        "{where} is flushed to 0 in {dtype}, and the gradients behind it are dead",
        "An activation became exactly 0 in low precision, so everything multiplied by it is 0 as well: there is no "
        "NaN, the gradients are simply gone.",
        "Walked back from a gradient that is 0 here and not 0 in the FP32 re-check.",
        ("Run {where} in FP32, or scale its input up by {wanted_scale} and the result down again.",),
        _IEEE,
    ),
    Entry(
        "NP206",
        Kind.UNDERFLOW,
        "rounding in {dtype} pushes {where} out of its domain",
        "Two nearly equal numbers were subtracted, or a number was rounded past the edge of a domain (a variance below "
        "0, a probability above 1). In FP32 the same step is finite.",
        "The operation is NaN here from finite inputs and finite in the FP32 re-check.",
        ("Compute line {line} in FP32, and clamp its input to the domain.",),
        _IEEE,
    ),
    Entry(
        "NP207",
        Kind.UNDERFLOW,
        "the moving average {where} stands still: {swallowed} of its updates are rounded away in {dtype}",
        "An exponential moving average changes by (1 - decay) of a difference, far less than the distance between two "
        "neighbouring numbers of FP16 or bf16. It stays what it was at the start, however the weights move.",
        "Elements that the script's own in-place update changes in the FP32 re-check and not here; from half of them "
        "on.",
        (
            "Keep the average in FP32 (`ema = copy.deepcopy(model).float()`), and cast a copy down where it is used.",
            "Update it less often with a smaller decay: an update every 10 steps with decay ** 10.",
        ),
        _IEEE,
    ),
    Entry(
        "NP301",
        Kind.DATA,
        "{what} in {where}",
        "The numbers are not finite before the model has done anything: they come from the data.",
        "Walked back to a tensor that no operation wrote, and which is not finite.",
        (
            "Look at {items}; fill or drop them when the data is loaded.",
            "`assert torch.isfinite(x).all()` in the dataset's `__getitem__` finds the file at once.",
        ),
        "nanprobe's own rule: an operation cannot be blamed for what it was given.",
    ),
    Entry(
        "NP302",
        Kind.DATA,
        "labels are out of range at line {line}: {what}",
        "A class index outside [0, classes) or a probability outside [0, 1] makes the loss meaningless: it has no "
        "lower "
        "bound, or reads memory that is not there.",
        "The range of the target beside the range the loss function is defined on.",
        ("Bring the labels into {range}: {hint}.",),
        "PyTorch documentation, BCEWithLogitsLoss and CrossEntropyLoss: shape and range of the target.",
    ),
    Entry(
        "NP303",
        Kind.DATA,
        "line {line} averages over nothing: {what}",
        "Every label of the batch is ignored, or a selection is empty, and the mean of no elements is 0/0 = NaN.",
        "The loss is NaN from finite inputs in a mean over zero elements.",
        (
            "Skip such a batch, or divide a sum by `max(count, 1)`: "
            "`F.cross_entropy(..., reduction='sum') / (labels != ignore_index).sum().clamp(min=1)`.",
            "Find out why {items} have no label left (truncation, filtering).",
        ),
        "PyTorch documentation, CrossEntropyLoss: reduction 'mean' divides by the number of targets not ignored.",
    ),
    Entry(
        "NP304",
        Kind.DATA,
        "{where} is not finite before the first step: {what}",
        "The parameter was never initialised (`torch.empty` keeps whatever was in memory) or was loaded that way. "
        "On another day the same memory may hold harmless numbers, so the fault comes and goes.",
        "Walked back to a parameter or buffer that is not finite at step 0.",
        (
            "Initialise it: `nn.init.normal_({where}, std=0.02)` right after it is made.",
            "If it comes from a checkpoint, look at that file: `torch.isfinite(state[{where!r}]).all()`.",
        ),
        "PyTorch documentation, torch.empty: the tensor is filled with uninitialized data.",
    ),
    Entry(
        "NP305",
        Kind.DATA,
        "{where} holds {value}, {compared}",
        "One finite but absurd number in the data is squared or multiplied until even FP32 overflows.",
        "Magnitudes followed back from the Inf to a tensor of the batch that is far beyond its usual range.",
        (
            "Look at {items}: a broken file header or unit is read as numbers.",
            "Check the range when the data is loaded: `assert x.abs().max() < {sane}`.",
        ),
        "nanprobe's own rule: beyond 1e15, or 1e8 times the other batches.",
    ),
    Entry(
        "NP306",
        Kind.DATA,
        "CTC loss is Inf at line {line}: {what}",
        "The input is shorter than its transcript (repeated letters need one frame more each), so no alignment exists "
        "and its probability is 0.",
        "The CTC loss is Inf from finite log-probabilities, in the re-check as well.",
        (
            "Drop {items}: after subsampling they have fewer frames than labels.",
            "Or pass `zero_infinity=True` to `CTCLoss`.",
        ),
        "PyTorch documentation, CTCLoss: zero_infinity; infinite losses occur when inputs are too short.",
    ),
    Entry(
        "NP501",
        Kind.DIVERGENCE,
        "training diverges: {trend}",
        "The numbers grow from step to step until even FP32 cannot hold them. Nothing is wrong with one operation: "
        "the updates are too large.",
        "Loss, gradients or weights grew by orders of magnitude over the steps before, in FP32.",
        (
            "Lower the learning rate (now {learning_rate}) by a factor of 10, or warm it up.",
            "Clip the gradients: `clip_grad_norm_(model.parameters(), 1.0)`; they went from {first_grad} to "
            "{last_grad}.",
        ),
        "nanprobe's own rule: growth by 1000 or more over the steps before.",
    ),
    Entry(
        "NP601",
        Kind.MISUSE,
        "gradients are clipped while still multiplied by the loss scale ({scale})",
        "`clip_grad_norm_` before `scaler.unscale_` compares scaled gradients with the threshold, so nearly every step "
        "is cut down by about the loss scale.",
        "A clip call between `scale(loss).backward()` and `unscale_` in the same step.",
        ("Call `scaler.unscale_(optimizer)` before line {line}.",),
        _AMP,
    ),
    Entry(
        "NP602",
        Kind.MISUSE,
        "the optimizer steps on gradients that are still multiplied by the loss scale ({scale})",
        "`optimizer.step()` was called instead of `scaler.step(optimizer)`: every update is too large by the loss "
        "scale, "
        "and steps with Inf gradients are not skipped.",
        "A step outside `scaler.step` after a scaled backward pass that was not unscaled.",
        ("Replace line {line} by `scaler.step(optimizer)`, followed by `scaler.update()`.",),
        _AMP,
    ),
    Entry(
        "NP603",
        Kind.MISUSE,
        "`scaler.update()` is never called",
        "Without `update()` the scale never changes: an overflow repeats in every later step.",
        "`scaler.step` was called in {steps} steps, `scaler.update` in none.",
        ("Call `scaler.update()` once after `scaler.step(optimizer)`, line {line}.",),
        _AMP,
    ),
    Entry(
        "NP604",
        Kind.MISUSE,
        "`{call}` runs on every micro-batch: {calls} for {rounds}",
        "While gradients are accumulated the scale must not change, or gradients of different scales are added up. "
        "`update()` belongs after the optimizer step, once.",
        "The calls as they happened: backward passes, steps and updates.",
        ("Move line {line} into the branch that calls `scaler.step(optimizer)`.",),
        _AMP,
    ),
    Entry(
        "NP605",
        Kind.MISUSE,
        "`unscale_` runs on every micro-batch",
        "Gradients that are already unscaled are then added to and unscaled again; GradScaler refuses the second call.",
        "Two `unscale_` calls for one optimizer with no `update` between them.",
        ("Call `scaler.unscale_(optimizer)` once, after the last backward pass before the step (line {line}).",),
        _AMP,
    ),
    Entry(
        "NP606",
        Kind.MISUSE,
        "{what} runs inside autocast",
        "Autocast keeps low-precision copies of the weights until its context ends. When the optimizer steps "
        "inside it, "
        "the next forward pass uses the old copies.",
        "An optimizer step or backward pass between entering and leaving one autocast context.",
        ("Close the autocast context after the loss is computed; `backward()` and `step()` belong outside.",),
        _AMP,
    ),
    Entry(
        "NP607",
        Kind.MISUSE,
        "the loss is cut off from the parameters: none of {parameters} gets a gradient in {steps} steps",
        "The graph between parameters and loss is broken: the loss was rebuilt from numbers (`torch.tensor(...)`, "
        "`.item()`, `.detach()`, numpy) or computed under `no_grad`.",
        "backward ran, and no parameter of the optimizer ever received a gradient.",
        (
            "Keep the loss a tensor: `torch.stack(losses).mean()` instead of `torch.tensor(losses)`.",
            "`loss.grad_fn` says what the loss was made from; `requires_grad=True` on a new tensor hides the break.",
        ),
        _AUTOGRAD,
    ),
    Entry(
        "NP608",
        Kind.MISUSE,
        "the {setting} of {optimizer} is {value} at step {step}",
        "A hyper-parameter that is not finite makes every weight NaN at the next step.",
        "The optimizer's own numbers, read at each step.",
        ("Look at the schedule that sets it: a division by a warm-up or total of 0 steps gives NaN.",),
        "IEEE 754-2019: 0/0 is NaN, and NaN times anything is NaN.",
    ),
    Entry(
        "NP609",
        Kind.MISUSE,
        "binary_cross_entropy (BCELoss) is refused under autocast",
        "The logarithm of a probability in FP16 is not safe, so PyTorch raises an error for it inside autocast on "
        "CUDA.",
        "The script was stopped by that error.",
        (
            "Return logits and use `F.binary_cross_entropy_with_logits` / `BCEWithLogitsLoss` (drop the sigmoid).",
            "Or compute line {line} with autocast disabled, on `.float()` inputs.",
        ),
        "PyTorch documentation, Autocast op reference: prefer binary_cross_entropy_with_logits.",
    ),
    Entry(
        "NP610",
        Kind.MISUSE,
        "the optimizer works on {dtype} weights with no FP32 master copy",
        "Updates much smaller than a weight are rounded away, and GradScaler refuses FP16 gradients.",
        "The dtype of the parameters the optimizer owns.",
        (
            "Leave the model in FP32 and use autocast (remove `.half()`/`.bfloat16()`), or keep an FP32 master copy "
            "for the optimizer.",
        ),
        _AMP,
    ),
    Entry(
        "NP611",
        Kind.MISUSE,
        "FP16 autocast without a GradScaler",
        "Without a loss scale, gradients below 6e-8 are flushed to 0.",
        "Autocast to float16 was entered and no loss was scaled.",
        ("Add `scaler = torch.amp.GradScaler()` and `scaler.scale(loss).backward()`, `scaler.step`, `scaler.update`.",),
        _AMP,
    ),
    Entry(
        "NP612",
        Kind.MISUSE,
        "GradScaler together with bfloat16",
        "bfloat16 has the range of FP32: there is nothing to scale, and the scaler only skips steps.",
        "Autocast to bfloat16 was entered and the loss was scaled.",
        ("Remove the GradScaler, or create it with `enabled=False`.",),
        _AMP,
    ),
    Entry(
        "NP613",
        Kind.MISUSE,
        "gradients behind {where} are not proportional to the loss scale",
        "A custom autograd function multiplies or divides by the loss scale: upstream gradients are wrong by that "
        "factor.",
        "One backward step at two loss scales.",
        ("Return the gradient of {where} without the scale; GradScaler takes it out at the end.",),
        _AUTOGRAD,
    ),
    Entry(
        "NP614",
        Kind.MISUSE,
        "{share} of the steps are skipped",
        "Every skipped step is a batch that was computed and thrown away.",
        "Steps the scaler skipped after its first calibration.",
        (
            "Look at {where}, or at the finding that says what overflows; raise `growth_interval` if the scale grows "
            "too often.",
        ),
        _AMP,
    ),
    Entry(
        "NP615",
        Kind.MISUSE,
        "gradients of {optimizer} are clipped before they are unscaled; another optimizer's were",
        "With several optimizers each needs its own `unscale_` before its gradients are clipped.",
        "A clip call after `unscale_` of one optimizer only.",
        ("Call `scaler.unscale_` for every optimizer whose parameters line {line} clips.",),
        _AMP,
    ),
    Entry(
        "NP616",
        Kind.MISUSE,
        "gradients are never cleared: each step adds to those of the steps before",
        "Without `zero_grad` the gradients of all earlier batches stay in the sum, and the steps grow.",
        "Gradients of the step before are still there when the next backward pass begins, and no call cleared them.",
        ("Call `optimizer.zero_grad()` once a step, before `backward()`.",),
        "PyTorch documentation, Optimizer.zero_grad: gradients accumulate by design.",
    ),
    Entry(
        "NP617",
        Kind.MISUSE,
        "a step is left without `scaler.update()`",
        "An early `continue` after `unscale_` leaves the scaler believing that the gradients of this step are still "
        "pending; the next `unscale_` raises.",
        "`unscale_` was called twice for one optimizer with no `update` in between, after steps that were complete.",
        ("Call `scaler.update()` before the `continue`; `scaler.step` already skips gradients that are not finite.",),
        _AMP,
    ),
    Entry(
        "NP618",
        Kind.MISUSE,
        "the learning rate schedule moves on while {skipped} steps are skipped",
        "`scheduler.step()` is called in every step, also in those that GradScaler skips: the schedule runs ahead "
        "of the "
        "optimizer, and a warm-up may be over before a single update was made.",
        "Calls of the scheduler beside the steps that were carried out.",
        (
            "Step the schedule only when the optimizer did: compare `scaler.get_scale()` before and after "
            "`scaler.update()` at line {line}; it falls when the step was skipped.",
        ),
        _AMP,
    ),
)


_LATER_MISUSE = (
    Entry(
        "NP619",
        Kind.MISUSE,
        "a backward pass starts from a loss that is not scaled, and its gradients are divided by {scale} all the same",
        "`scaler.step` divides every gradient by the loss scale, also those of a loss that never went through "
        "`scaler.scale`: that loss has next to no effect.",
        "A backward call with no `scale` before it in a step of the scaler, and gradients that are those of the fp32 "
        "stage divided by the scale.",
        (
            "Write `scaler.scale(loss).backward()` where `backward` is called, or add the losses up and scale the sum.",
            "Give that loss an optimizer of its own, stepped without the scaler.",
        ),
        _AMP,
    ),
    Entry(
        "NP620",
        Kind.MISUSE,
        "the run goes on from a checkpoint, but its GradScaler starts afresh at {scale}",
        "The scale and the count of good steps belong to the training's state like the optimizer's moments. A new "
        "scaler calibrates again: steps are skipped, or gradients flushed until the scale has grown.",
        "The state of an optimizer was loaded, and the scaler that steps it is new and was given none.",
        (
            "Save `scaler.state_dict()` in the checkpoint, and call `scaler.load_state_dict(...)` beside line {line}.",
            "For a checkpoint without one, start at the scale that the log shows last: `GradScaler(init_scale=...)`.",
        ),
        _AMP,
    ),
    Entry(
        "NP621",
        Kind.MISUSE,
        "the loss scale is set back to {scale} again and again, and {skipped} steps are skipped",
        "GradScaler halves its scale after an overflow. One that is set to a fixed number, or made anew in the loop, "
        "overflows again at every later step of that size and skips them all.",
        "After every skipped step the next one begins at the same scale or a higher one; or scalers are made again and "
        "again, each beginning with a skipped step.",
        (
            "Make the GradScaler once, before the loop, and call `scaler.update()` without a new scale (line {line}).",
            "With a fixed scale, choose one that holds: `nanprobe sweep-scale` says which.",
        ),
        _AMP,
    ),
)


def _graph(code: str, name: str, explanation: str, *remedies: str) -> Entry:
    return Entry(
        code,
        Kind.GRAPH,
        "{where}: {domain}",
        explanation,
        f"Walked back to {name}; the re-check in higher precision fails as well, or stands at the same edge.",
        remedies,
        _AUTOGRAD,
    )


_GRAPH = (
    _graph(
        "NP400",
        "an operation",
        "An operation has no finite result, or no finite derivative, for what it was given.",
        "Keep the inputs of line {line} inside the domain of {op}.",
    ),
    _graph(
        "NP401",
        "a logarithm",
        "The logarithm of 0 is -Inf, of a negative number NaN, and its derivative 1/x is Inf at 0.",
        "Clamp first: `torch.log(x.clamp(min=1e-7))`; adding eps helps only where x cannot be negative.",
        "For probabilities use the fused form: `log_softmax`, `logsigmoid`, `binary_cross_entropy_with_logits`.",
    ),
    _graph(
        "NP402",
        "a square root",
        "The derivative of sqrt is 1/(2 sqrt(x)): Inf at exactly 0; below 0 the root itself is NaN.",
        "Add eps under the root: `torch.sqrt(x + 1e-8)`; a clamp after the root is too late.",
    ),
    _graph(
        "NP403",
        "a power",
        "0 to a negative power is Inf, a negative number to a fraction NaN, and x^p with p < 1 has no derivative at 0.",
        "Clamp the base: `x.clamp(min=1e-7) ** p`.",
    ),
    _graph(
        "NP404",
        "a division",
        "x/0 is Inf and 0/0 is NaN, and so are the gradients of the quotient.",
        "Guard the denominator: `a / b.clamp(min=1e-8)`, or `torch.where(b != 0, a / torch.where(b != 0, b, 1), 0)`.",
    ),
    _graph(
        "NP405",
        "a norm or distance",
        "The derivative of a norm or distance is x/|x|: 0/0 at exactly 0.",
        "Use `torch.sqrt((x * x).sum(-1) + 1e-8)`, or keep equal points apart.",
    ),
    _graph(
        "NP406",
        "a standard deviation",
        "The unbiased variance of one element divides by 0; a normalisation by std, and the derivative of std, divide "
        "by std, which is 0 for a constant input.",
        "Skip the normalisation for fewer than 2 elements, or use `std(unbiased=False)` with eps under the root.",
    ),
    _graph(
        "NP407",
        "a softmax or logsumexp",
        "A row in which everything is -Inf has no largest element: -Inf - (-Inf) is NaN.",
        "Leave one element of every row unmasked, or mask with a finite number (`torch.finfo(x.dtype).min`) and zero "
        "the row afterwards.",
    ),
    _graph(
        "NP408",
        "0 times Inf",
        "0 × Inf is NaN. Masking a value afterwards does not mask its gradient: 0 × Inf again.",
        "Mask the input, not the result: `torch.where(ok, f(torch.where(ok, x, safe)), 0)`.",
        "For x log x use `torch.xlogy` or `torch.special.entr`.",
    ),
    _graph(
        "NP409",
        "an inverse function",
        "The derivative of acos and asin is Inf at ±1 (of atanh and logit the value is too).",
        "Clamp inside the domain: `x.clamp(-1 + 1e-6, 1 - 1e-6)`; a clamp to exactly ±1 is not enough.",
        "An angle is better had from `torch.atan2(sin, cos)` than from acos or asin.",
    ),
    _graph(
        "NP410",
        "an angle",
        "The derivative of atan2(y, x) divides by x² + y², which is 0 (or subnormal) near the origin.",
        "Keep away from the origin: add 1e-6 to x, or leave such elements out of the loss.",
    ),
    _graph(
        "NP411",
        "an exponential",
        "exp leaves FP32 above 88.7 (sinh and cosh above 89.4).",
        "Bound the exponent: `x.clamp(max=20).exp()`, or use `softplus`, `log1p`, `logsumexp`.",
    ),
    _graph(
        "NP412",
        "a binary cross-entropy",
        "The logarithm of a probability that is exactly 0 or 1, or a probability outside [0, 1].",
        "Use `binary_cross_entropy_with_logits` on logits.",
    ),
    _graph(
        "NP413",
        "a normalisation layer",
        "The variance of one element is 0/0 or exactly 0, and so is that of equal elements.",
        "Drop the last incomplete batch (`drop_last=True`), or use LayerNorm/GroupNorm.",
    ),
    _graph(
        "NP414",
        "a cosine similarity or normalisation",
        "A vector of length 0 has no direction, and the derivative of a direction divides by the length.",
        "Use `F.normalize(x, eps=1e-6)` / `cosine_similarity(eps=1e-6)`, and look at why the vector is 0.",
    ),
    _graph(
        "NP415",
        "a matrix decomposition",
        "The derivative of eigenvectors and singular vectors divides by the difference of "
        "eigenvalues; two equal ones (or a singular matrix) give Inf or NaN.",
        "Add a small multiple of the identity, or noise, to the matrix; or detach the vectors.",
        "Where the vectors are not needed, use a loss that depends on eigenvalues or singular values only.",
    ),
    _graph(
        "NP416",
        "a product",
        "The derivative of a product divides by its factors: 0/0 at a factor of 0.",
        "Compute the product as `exp(sum(log(x.clamp(min=1e-8))))`, or keep factors away from 0.",
    ),
    _graph(
        "NP417",
        "a distribution",
        "The density is taken outside its support, or with a scale of 0.",
        "Keep scale and concentration positive (`softplus(x) + 1e-4`), and samples inside the support.",
    ),
    _graph(
        "NP418",
        "Inf minus Inf",
        "Inf - Inf and Inf/Inf are NaN; the Inf was put there on purpose.",
        "Replace -Inf by a large finite number (`torch.finfo(x.dtype).min`) where values are combined.",
    ),
    _graph(
        "NP419",
        "a remainder or trigonometric function",
        "The function has no value there (remainder by 0, sin of Inf).",
        "Keep the inputs of line {line} finite and non-zero.",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.code: entry for entry in (*_ENTRIES, *_LATER_MISUSE, *_GRAPH)}


def entry(code: str) -> Entry:
    """The catalogue's page for `code`. Raises KeyError for a code that does not exist."""
    return CATALOGUE[code]
