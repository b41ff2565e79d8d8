"""Live progress: plain lines in logs, a bar on a terminal, silence when quiet."""

import io

import samples
from nanprobe.progress import PlainProgress, open_progress
from nanprobe.records import Outcome, StageName


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def record(index, **changes):
    return {"index": index, "loss": 2.0 - index / 100, "loss_scale": 65536.0, "skipped": False, **changes}


def drive(progress):
    with progress:
        progress.stage_started("amp", 50)
        for index in range(25):
            progress.step(record(index, skipped=index < 2))
        progress.notice("cuda is mapped\nto the [red]CPU\x1b[0m")
        reason = "ValueError: no\x1b[31m"
        progress.stage_finished(samples.stage(StageName.AMP, 25, outcome=Outcome.CRASHED, reason=reason))


def test_plain_lines():
    stream = io.StringIO()
    drive(open_progress(stream))
    assert stream.getvalue().splitlines() == [
        "nanprobe: amp: started, 50 steps",
        "nanprobe: amp: step 10/50  loss 1.91  scale 65536  skipped 2",
        "nanprobe: amp: step 20/50  loss 1.81  scale 65536  skipped 2",
        "nanprobe: cuda is mapped to the [red]CPU [0m",
        "nanprobe: amp: crashed, 25 steps in 1.9 s: ValueError: no [31m",
    ]


def test_a_slow_stage_speaks_every_two_seconds():
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    progress.stage_started("fp32", None)
    for index in range(4):
        clock.now += 1.5
        progress.step(record(index, loss=float("nan"), loss_scale=None))
    assert stream.getvalue().splitlines() == [
        "nanprobe: fp32: started",
        "nanprobe: fp32: step 2  loss NaN",
        "nanprobe: fp32: step 4  loss NaN",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    drive(open_progress(stream))
    last = stream.getvalue().splitlines()[-2]
    assert "amp" in last
    assert "crashed" in last
    assert "[red]CPU [0m" in stream.getvalue()
    assert "ValueError: no\x1b[31m" not in stream.getvalue()


def test_a_stage_that_was_skipped_needs_no_start(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    trace = samples.skipped(StageName.FP16, "fp32 failed")
    for stream in (Terminal(), io.StringIO()):
        with open_progress(stream) as progress:
            progress.stage_finished(trace)
        assert "fp16: skipped: fp32 failed" in stream.getvalue()


def test_quiet_says_nothing():
    stream = Terminal()
    drive(open_progress(stream, quiet=True))
    assert stream.getvalue() == ""
