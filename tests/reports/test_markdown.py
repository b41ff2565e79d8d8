"""The Markdown reports: goldens, harmless whatever the user's names, and never longer than GitHub takes."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import samples
from loss_scale import sweeps
from nanprobe.findings import (
    BatchPlace,
    Diagnosis,
    Finding,
    Kind,
    Remedy,
    RemedyCost,
    Severity,
    Status,
    Verification,
)
from nanprobe.records import ErrorRecord, Outcome, Source, StageName, Target
from nanprobe.reports.formats import ReportFormat, make_report
from nanprobe.reports.markdown.syntax import code, escape, fence, head, prose, row
from nanprobe.reports.plain_text import clean
from nanprobe.reports.sweep import make_sweep_report

RUN = "/cache/nanprobe/runs/20260102-030405-train-1f3a"
GITHUB_LIMIT = 65_536
PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
NASTY = "a|b`c`` <script>alert(1)</script> **x** __y__ ~~z~~ [l](http://x) ![i](j) #12 @me &amp; \\| $m$ ```\n# h\n> q"


def render(sample, show_all=False) -> str:
    return make_report(ReportFormat.MARKDOWN, show_all=show_all).render(*sample)


class Text(HTMLParser):
    """What a reader sees of a page, and the tags it is made of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen, self.tags = "", set()
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.seen += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def read(markdown: str) -> Text:
    return Text(PARSER.render(markdown))


@pytest.mark.parametrize("name", samples.ALL)
def test_markdown(name, project, check_golden):
    check_golden(render(samples.ALL[name](RUN, project)))


@pytest.mark.parametrize("name", ["transformer", "conflicting", "no_gradients", "tiny_gradient"])
def test_sweep_markdown(name, check_golden):
    check_golden(make_sweep_report(ReportFormat.MARKDOWN).render(sweeps.ALL[name]()))


@pytest.mark.parametrize("write", [escape, prose, code])
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("ab1 _*`|<>&\\[]()#@~$!-+=.:/{}\"'\n\té"), max_size=40) | st.just(NASTY))
def test_what_is_read_is_what_was_written(write, text):
    """In a paragraph, a list and a table's cell; a backtick of nanprobe's own prose is not shown."""
    shown = clean(text).strip()
    wanted = shown.replace("`", "") if write is prose else shown
    written = write(text)
    for page in (f"x {written} y", f"1. x {written} y", head(["a", "b"]) + "\n" + row([f"x {written} y", "end"])):
        found = read(page)
        seen = found.seen.replace("`", "") if write is prose else found.seen
        assert "".join(wanted.split()) in "".join(seen.split()), page
        assert found.seen.rstrip().endswith("end" if page.startswith("|") else "y")
        assert found.tags <= {"p", "code", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"}


def test_people_and_issues_are_not_called_upon():
    assert re.search(r"@\w|#\d", escape("a @user and #12")) is None


@pytest.mark.parametrize("line", ["```", "x = '````'  # ~~~", "</details>", "    ```python"])
def test_a_fence_outlives_its_lines(line):
    found = read(fence(["before", line, "after"], "python") + "\n\nend")
    assert found.seen.startswith(f"before\n{line}\nafter\n")
    assert found.tags == {"pre", "code", "p"}


def nasty_sample(text: str) -> samples.Sample:
    source = Source(f"/nowhere/{text}.py", 3, text, text)
    finding = Finding(
        "NP101", Kind.GRAPH, Severity.ERROR, text, StageName.FP32, module=text, parameter=text, op=text, source=source,
        batch=BatchPlace(3), evidence={text: text, "more": {text: [text]}}, why=text, remedies=(Remedy(text),),
        parameters=(text, text),
    )  # fmt: skip
    error = ErrorRecord(text, text, (text,), source, 0)
    stage = samples.stage(StageName.FP32, outcome=Outcome.CRASHED, reason=text, notices=(text,), error=error)
    run = samples.run(RUN, stage, target=Target(text, (text,)))
    layers = (samples.layer(text, kind=Kind.GRAPH), samples.layer(text))
    return run, Diagnosis(Status.FAILING, finding, (finding, replace(finding)), layers, (text,))


@pytest.mark.parametrize("verdict", [True, False])
def test_any_text_from_the_user_is_harmless(verdict):
    run, answer = nasty_sample(NASTY)
    if not verdict:
        answer = replace(answer, status=Status.INCONCLUSIVE, verdict=None)
    page = render((run, answer), show_all=True)
    found = read(page)
    allowed = {"h2", "h3", "p", "strong", "em", "code", "pre", "details", "summary", "ol", "ul", "li"}
    assert found.tags <= allowed | {"table", "thead", "tbody", "tr", "th", "td"}
    assert found.seen.count("<script>alert(1)</script>") > 8
    assert page.count("<details>") == page.count("</details>") == 1
    assert all(character.isprintable() or character == "\n" for character in page)


@pytest.mark.parametrize("text", ["|" * 70_000, "word " * 15_000])
def test_a_page_is_never_longer_than_github_takes(text):
    run, answer = nasty_sample(text)
    many = replace(answer, findings=answer.findings * 200, layers=answer.layers * 5_000)
    for show_all in (False, True):
        page = render((run, many), show_all)
        assert len(page) < GITHUB_LIMIT
        assert page.rstrip().rfind("### Environment") > page.rfind("<details>")
        assert page.count("<details>") == page.count("</details>")


def test_layers_that_do_not_fit_are_counted():
    run, answer = samples.overflow(RUN)
    rows = tuple(samples.layer(f"block.{i}.weight", kind=Kind.OVERFLOW) for i in range(2_000))
    page = render((run, replace(answer, layers=rows)))
    shown = page.count("| `block.")
    assert 300 < shown < 2_000
    assert f"… and {2_000 - shown:,} more layers, left out to stay below GitHub's limit" in page
    assert GITHUB_LIMIT - 10_000 < len(page) < GITHUB_LIMIT


def test_all_layers_of_a_sweep_below_the_limit():
    result = sweeps.ALL["transformer"]()
    many = tuple(replace(result.layers[0], layer=f"block.{i}|" + "x" * 100) for i in range(3_000))
    page = make_sweep_report(ReportFormat.MARKDOWN, show_all=True).render(
        replace(result, layers=(*result.layers, *many))
    )
    assert len(page) < GITHUB_LIMIT
    assert "more layers, left out to stay below GitHub's limit" in page
    assert "### Environment" in page


def test_remedies_that_were_tried_are_told_with_the_lines_to_write():
    run, answer = samples.overflow(RUN)
    diff = "--- train.py\n+++ train.py\n@@ -14 +14 @@\n-h = h * k  # ```\n+h = h.float() * k"
    tried = (
        Remedy("use bfloat16 | no", False, 12, kind="format", reason="the loss no longer falls"),
        Remedy("run a block in FP32", True, 50, kind="FP32 island", cost=RemedyCost(1.02, 1.1), diff=diff),
    )
    verification = Verification("NP101", StageName.AMP, tried, 2, 4.2, 60.0)
    page = render((run, answer.with_verification(verification)))
    proven = page.partition("### Proven remedies")[2].partition("### Stages")[0]
    assert "1 of 2 remedies tried helped (2 runs of the amp stage, 4.2 s)" in proven
    assert proven.index("| ✔ | FP32 island | 50 ") < proven.index("| ✖ | format | 12 ")
    assert "use bfloat16 &#124; no: the loss no longer falls" in proven
    assert "````diff\n--- train.py\n" in proven and "+h = h.float() * k\n````" in proven
    assert "fold k into self.down's weight" not in page.partition("### What to do")[2].partition("### Stages")[0]
