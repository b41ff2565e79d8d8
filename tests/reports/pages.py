"""Pages of the HTML report for tests: of every hand-built ending, of hostile names, of many layers; and their parts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import samples
from loss_scale import sweeps
from nanprobe.diagnosis import diagnose
from nanprobe.findings import ChainLink, ChainValue, Diagnosis, Remedy, RemedyCost, Severity, Verification
from nanprobe.records import GradRecord, ParameterInfo, Phase, RunRecord, Source, StageName, StageTrace, Target
from nanprobe.reports.formats import ReportFormat, make_report
from nanprobe.reports.sweep import make_sweep_report

VOID = {"meta", "img", "br", "hr", "col", "link", "input"}
HOSTILE = (
    "</script><script>window.hurt=1</script>\"'`<img src=x onerror='window.hurt=2'>&amp;\x00\x1b[31m\u202e日本\ud800"
)


def render(run: RunRecord, diagnosis: Diagnosis | None = None) -> str:
    return make_report(ReportFormat.HTML).render(run, diagnosis or diagnose(run))


def page_of(name: str, directory: str = "/cache/run") -> str:
    """The page of a sample, or of a sweep."""
    if name.startswith("sweep "):
        return make_sweep_report(ReportFormat.HTML).render(sweeps.ALL[name.removeprefix("sweep ")]())
    return render(*(tried() if name == "tried" else samples.ALL[name](directory)))


NAMES = (*samples.ALL, "tried", *(f"sweep {name}" for name in sweeps.ALL))


def hostile(text: str) -> tuple[RunRecord, Diagnosis]:
    """A run in which every name and word that comes from the user is `text`."""
    run, answer = samples.overflow("/cache/run")
    stages = []
    for stage in run.stages:
        parameters = tuple(replace(p, name=f"{text}{k}", module=text) for k, p in enumerate(stage.parameters))
        deep = tuple(replace(d, grads=(with_exponents(d.grads[0], f"{text}0"),)) for d in stage.deep_steps)
        stages.append(replace(stage, parameters=parameters, notices=(text,), reason=text, deep_steps=deep))
    source = Source(f"/{text}", 3, text, text)
    chain = (
        ChainLink(text, None, text, source, Phase.FORWARD, None, ChainValue("float16", 10, 1, 1, math.nan)),
        ChainLink(None, text, text, None, None, None, None, skipped=3),
    )
    assert answer.verdict is not None
    finding = replace(
        answer.verdict, title=text, module=text, why=text, source=source, op=text, evidence={text: text}, chain=chain,
        remedies=(Remedy(f"`{text}` {text}"),), parameters=(text,) * 3, parameter=text,
    )  # fmt: skip
    layers = tuple(replace(row, name=f"{text}{k}") for k, row in enumerate(answer.layers[:4]))
    found = (finding, replace(finding, severity=Severity.NOTE, code="NP102"))
    changed = replace(run, target=Target(text, (text,)), stages=tuple(stages), notices=(text,), directory=text)
    return changed, replace(answer, verdict=finding, findings=found, layers=layers)


def tried() -> tuple[RunRecord, Diagnosis]:
    """The overflow with its remedies tried: one that helps, with the lines to write, and one that does not."""
    run, answer = samples.overflow("/cache/run")
    helps = Remedy(
        text="Run `encoder.layers.3.ffn` in FP32", verified=True, steps=50, kind="FP32 island",
        cost=RemedyCost(1.08, None), final_loss=0.52, reference_loss=0.51931, gradient_error=0.0012,
        diff="--- train.py\n+++ train.py\n@@ -14 +14 @@\n-        h = h * self.k\n+        h = h.float() * self.k",
        losses=tuple(2.31 * 0.97**k for k in range(50)),
    )  # fmt: skip
    refused = Remedy(
        "Lower `init_scale` to 2^10", False, 13, "loss scale", "step 12 is still not finite: NaN in the loss"
    )
    verification = Verification("NP101", StageName.AMP, (refused, helps), 4, 31.5, 120.0, "the budget was spent")
    return run, answer.with_verification(verification)


def with_exponents(grad: GradRecord, name: str) -> GradRecord:
    return replace(grad, name=name, exponent_offset=-30, exponent_counts=(5, 0, 3, 90, 2))


def large(layers: int, steps: int) -> RunRecord:
    """A run of many layers, in three stages, with skipped steps and NaN in the amp stage."""
    names = [f"model.layers.{k // 6}.{('q', 'k', 'v', 'o', 'up', 'down')[k % 6]}_proj.weight" for k in range(layers)]
    parameters = tuple(ParameterInfo(n, n.rpartition(".")[0], (4, 4), "float32", True) for n in names)
    stages = tuple(_large_stage(name, parameters, steps) for name in StageName)
    return samples.run("/cache/run", *stages)


def _large_stage(name: StageName, parameters: tuple[ParameterInfo, ...], steps: int) -> StageTrace:
    source, scale = random.Random(0), 65536.0 if name is StageName.AMP else None
    records = []
    for k in range(steps):
        bad = scale is not None and k % 13 == 5
        grads = tuple(
            math.nan if bad and j % 3 else abs(source.gauss(0, 1)) * 2.0 ** (j / 30 - 12) * (scale or 1.0)
            for j in range(len(parameters))
        )
        loss = math.nan if bad else 5 * 0.98**k
        records.append(samples.step(k, loss=loss, loss_scale=scale, skipped=bad, grad_abs_max=grads))
    return samples.stage(name, steps=tuple(records), parameters=parameters)


@dataclass
class Page(HTMLParser):
    """A page taken apart; fails on tags that do not balance."""

    source: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)  # tags and attribute names only

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> repeats an attribute: {names}"
        self.tags.append((tag, dict(attrs)))
        self.shape.append(f"{tag} {' '.join(names)}")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> inside {self._open}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif not (self._open and self._open[-1] == "style"):
            self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def hover_data(self) -> Iterator[dict]:
        for attributes, data in self.scripts:
            if attributes.get("type") == "application/json":
                yield json.loads(data, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
