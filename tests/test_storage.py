"""The run directory: what is written comes back, whatever the numbers, and what was cut short as far as it goes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samples
from nanprobe.errors import ExitCode, OutputNotWritable, RunUnreadable
from nanprobe.plan import RunPlan
from nanprobe.records import (
    BatchRecord,
    CallRecord,
    DeepStep,
    ErrorRecord,
    ExternalRecord,
    GradRecord,
    InputRecord,
    OpRecord,
    Outcome,
    ParameterInfo,
    Source,
    Specimen,
    StageName,
    StageTrace,
    StepRecord,
    Target,
    TensorStats,
    UpdateRecord,
)
from nanprobe.storage import (
    TraceTail,
    TraceWriter,
    new_run_directory,
    read_run,
    read_stage,
    stage_directory,
    trace_path,
    write_document,
    write_run,
    write_stage,
)

FREE_TEXT = st.text(max_size=8).filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
FREE_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | FREE_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FREE = st.dictionaries(st.text(max_size=5), FREE_VALUES, max_size=3)
ROWS = st.lists(st.integers(0, 99), max_size=3).map(tuple)
WRITERS = ROWS


def few(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


SOURCES = st.sampled_from([Source("/a/train.py", 3, "x = y"), Source("/ü/тест.py", 1, "\ud800\n", "forward")])
STATS = st.builds(TensorStats, dtype=st.sampled_from(["float16", "float32"]), shape=ROWS)
INPUTS = st.builds(InputRecord, writers=WRITERS, shape=ROWS)
SPECIMENS = st.builds(
    Specimen,
    position=ROWS,
    real=st.floats(),
    shadow=st.none() | st.floats(),
    inputs=few(st.tuples(st.floats(), st.none() | st.floats())),
)
OPS = st.builds(
    OpRecord,
    source=st.none() | SOURCES,
    inputs=few(INPUTS),
    outputs=few(STATS),
    scalars=few(st.floats()),
    rows=ROWS,
    specimens=few(SPECIMENS),
    deliberate=st.booleans(),
)
EXTERNALS = st.builds(ExternalRecord, stats=STATS, rows=ROWS, columns=ROWS, dataset_indices=ROWS, source=SOURCES)
GRADS = st.builds(GradRecord, stats=STATS, writers=WRITERS)
UPDATES = st.builds(UpdateRecord, writers=WRITERS)
DEEP_STEPS = st.builds(
    DeepStep, ops=few(OPS), externals=few(EXTERNALS), grads=few(GRADS), updates=few(UPDATES), loss_writers=WRITERS
)
STEPS = st.builds(
    StepRecord,
    grad_abs_max=few(st.none() | st.floats()),
    weight_abs_max=few(st.none() | st.floats()),
    nonfinite_weights=few(st.text(max_size=5)),
    learning_rates=few(st.floats()),
    source=st.none() | SOURCES,
)
STAGES = st.builds(
    StageTrace,
    name=st.just(StageName.AMP),
    parameters=few(st.builds(ParameterInfo, shape=ROWS)),
    steps=few(STEPS),
    deep_steps=st.lists(DEEP_STEPS, max_size=2, unique_by=lambda deep: deep.step).map(
        lambda deep: tuple(sorted(deep, key=lambda step: step.step))
    ),
    calls=few(st.builds(CallRecord, source=st.none() | SOURCES, details=FREE)),
    batches=few(st.builds(BatchRecord, dataset_indices=ROWS, fields=few(EXTERNALS))),
    error=st.none() | st.builds(ErrorRecord, traceback=few(st.text(max_size=9)), source=st.none() | SOURCES),
    facts=FREE,
    notices=few(st.text(max_size=9)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(STAGES)
def test_a_stage_comes_back_as_it_was_written(tmp_path_factory, trace):
    directory = tmp_path_factory.mktemp("run") / "amp"
    write_stage(directory / "trace.jsonl", trace)
    assert repr(read_stage(directory)) == repr(trace)  # repr, for NaN is not equal to itself


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(STAGES, st.data())
def test_a_trace_cut_anywhere_keeps_every_whole_line(tmp_path_factory, trace, data):
    directory = tmp_path_factory.mktemp("run") / "amp"
    write_stage(directory / "trace.jsonl", trace)
    whole = (directory / "trace.jsonl").read_bytes()
    kept = data.draw(st.integers(0, len(whole) - 2))
    (directory / "trace.jsonl").write_bytes(whole[:kept])
    found = read_stage(directory)
    assert found.outcome is Outcome.CRASHED
    assert found.reason
    assert repr(found.steps) == repr(trace.steps[: len(found.steps)])
    assert repr(found.deep_steps) == repr(trace.deep_steps[: len(found.deep_steps)])


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def test_every_line_is_strict_json(tmp_path):
    for name in samples.ALL:
        run, _ = samples.ALL[name](tmp_path / name)
        write_run(run)
        for path in (tmp_path / name).rglob("*.json*"):
            for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                json.loads(line, parse_constant=refuse_constant)


def test_a_run_comes_back_as_it_was_written(tmp_path):
    for name, make in samples.ALL.items():
        run, _ = make(tmp_path / name)
        write_run(run)
        assert repr(read_run(tmp_path / name)) == repr(run)


def test_writing_the_run_again_keeps_the_traces_the_stages_wrote(tmp_path):
    run, _ = samples.overflow(tmp_path)
    write_run(run)
    before = (stage_directory(tmp_path, StageName.AMP) / "trace.jsonl").read_bytes()
    write_run(replace(run, device="cuda"), RunPlan(run.target))
    assert (stage_directory(tmp_path, StageName.AMP) / "trace.jsonl").read_bytes() == before
    assert read_run(tmp_path).device == "cuda"


def test_a_stage_that_left_nothing_is_skipped_and_says_why(tmp_path):
    run, _ = samples.overflow(tmp_path)
    write_run(replace(run, stages=run.stages[:1]), RunPlan(run.target), finished=False)
    found = read_run(tmp_path).stages
    assert [stage.outcome for stage in found[1:]] == [Outcome.SKIPPED, Outcome.SKIPPED]
    assert found[1].reason == "the run ended before this stage began"


def deep(step, **changes):
    return replace(DeepStep(step, (), (), (), ()), **changes)


def write_rerun(directory, *steps):
    with TraceWriter(trace_path(directory, rerun=True)) as writer:
        writer.write_header(StageName.AMP, "float16")
        for step in steps:
            writer.write(step)


def test_deep_steps_of_reruns_are_merged_and_the_latest_look_counts(tmp_path):
    with TraceWriter(trace_path(tmp_path)) as writer:
        writer.write_header(StageName.AMP, "float16", as_written=True)
        writer.write(deep(49))
        writer.write(deep(0))
        writer.write_end(Outcome.COMPLETED, seconds=2.5)
    write_rerun(tmp_path, deep(12), deep(0, truncated="out of memory"))
    write_rerun(tmp_path, deep(0, truncated="the second"))
    trace = read_stage(tmp_path)
    assert [step.step for step in trace.deep_steps] == [0, 12, 49]
    assert trace.deep_steps[0].truncated == "the second"
    assert (trace.outcome, trace.seconds, trace.as_written) == (Outcome.COMPLETED, 2.5, True)


def test_the_shared_strings_of_a_deep_step_are_written_once(tmp_path):
    source = Source("/a/train.py", 41, "h = h * self.k")
    op = OpRecord(0, "aten.mul.Tensor", samples.Phase.FORWARD, "encoder", source, None, None, (), ())
    with TraceWriter(tmp_path / "trace.jsonl") as writer:
        writer.write(deep(0, ops=(op,) * 100))
    text = (tmp_path / "trace.jsonl").read_text()
    assert text.count("h = h * self.k") == 1
    assert text.count("aten.mul.Tensor") == 1
    assert read_stage(tmp_path).deep_steps[0].ops == (op,) * 100


def test_a_trace_of_an_older_record_without_a_field_is_read_by_its_field_names(tmp_path):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write((ParameterInfo("w", None, (2, 3), "float32", True, "SGD"),))
    text = path.read_text()
    names = '["name","module","shape","dtype","requires_grad","optimizer","master_of"]'
    assert names in text
    older = '["shape","name","gone","module","dtype","requires_grad"]'
    row = '["w",null,[2,3],"float32",true,"SGD"]'
    assert row in text
    path.write_text(text.replace(names, older).replace(row, '[[2,3],"w",7,null,"float32",true]'))
    assert read_stage(tmp_path).parameters == (ParameterInfo("w", None, (2, 3), "float32", True),)


def test_a_killed_writers_half_line_is_cut_before_the_next_one_writes(tmp_path):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write_header(StageName.FP16, "float16")
        writer.write(samples.step(0))
    with path.open("ab") as file:
        file.write(b'{"type":"step","index":1,"lo')
    with TraceWriter(path) as writer:
        writer.write_end(Outcome.TIMEOUT, reason="no answer in 600 s")
    trace = read_stage(tmp_path)
    assert (trace.outcome, trace.reason, len(trace.steps)) == (Outcome.TIMEOUT, "no answer in 600 s", 1)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "before the first step"),
        ([samples.step(0), samples.step(12)], "after step 12"),
        ([ErrorRecord("ValueError", "bad batch", (), None, 0)], "ValueError: bad batch"),
    ],
)
def test_a_missing_end_is_a_crash_with_a_reason(tmp_path, records, reason):
    with TraceWriter(tmp_path / "trace.jsonl") as writer:
        for record in records:
            writer.write(record)
    trace = read_stage(tmp_path)
    assert trace.outcome is Outcome.CRASHED
    assert reason in trace.reason


def test_a_stage_that_wrote_nothing_crashed(tmp_path):
    (tmp_path / "amp").mkdir()
    trace = read_stage(tmp_path / "amp")
    assert (trace.name, trace.outcome) == (StageName.AMP, Outcome.CRASHED)
    assert trace.reason == "the process died before it could write anything"


def test_a_line_of_an_unknown_type_is_refused_when_written(tmp_path):
    with (
        TraceWriter(tmp_path / "trace.jsonl") as writer,
        pytest.raises(ValueError, match="'fact'; expected one of header"),
    ):
        writer.write({"type": "fact"})


@pytest.mark.parametrize("broken", [b'{"type":\n', b'{"type":"step"}\n', b'{"type":"call","step":[]}\n', b"[]\n"])
def test_a_broken_line_in_the_middle_is_reported_with_its_number(tmp_path, broken):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write_header(StageName.AMP, "float16")
    path.write_bytes(path.read_bytes() + broken + b'{"type":"notice","text":""}\n')
    with pytest.raises(RunUnreadable, match="line 3"):
        read_stage(tmp_path)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunUnreadable, match="no such directory; expected one that `nanprobe diagnose` made") as caught:
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunUnreadable, match="is empty; give one that"):
        read_run(tmp_path)
    assert caught.value.exit_code is ExitCode.USAGE
    (tmp_path / "notes.txt").touch()
    assert caught.value.exit_code is ExitCode.USAGE
    with pytest.raises(RunUnreadable, match=r"not a nanprobe run directory, it has no run\.json"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema_version": 1, "targ', "cut short or not JSON"),
        ('{"name": "some other tool"}', "was not written by nanprobe"),
        ("[]", "was not written by nanprobe"),
        ('{"schema_version": 2}', "schema version 2, this nanprobe reads up to 1; upgrade nanprobe"),
        ('{"schema_version": 1}', "an entry is missing or wrong"),
    ],
)
def test_a_damaged_or_newer_run_file_is_refused(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunUnreadable, match=message):
        read_run(tmp_path)


def test_the_tail_gives_each_step_once_when_its_line_is_whole(tmp_path):
    path = tmp_path / "trace.jsonl"
    tail = TraceTail(path)
    assert list(tail.poll()) == []  # not there yet
    with TraceWriter(path) as writer:
        writer.write_header(StageName.AMP, "float16")
        writer.write(deep(0))
        writer.write(samples.step(0, loss=math.inf, loss_scale=65536.0, skipped=True))
        (first,) = tail.poll()
        assert (first["index"], first["loss"], first["loss_scale"], first["skipped"]) == (0, math.inf, 65536.0, True)
        writer.write(samples.step(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert list(tail.poll()) == []
    path.write_bytes(whole)
    assert [step["index"] for step in tail.poll()] == [1]
    assert list(tail.poll()) == []


def test_the_document_is_written_whole(tmp_path):
    write_document(tmp_path, {"value": math.nan, "places": ("a", -math.inf)})
    assert json.loads((tmp_path / "diagnosis.json").read_text()) == {"value": "NaN", "places": ["a", "-Infinity"]}
    assert [path.name for path in tmp_path.iterdir()] == ["diagnosis.json"]


TARGET = Target("examples/my train.py")


@pytest.mark.parametrize(
    ("target", "stem"),
    [(TARGET, "my-train"), (Target("pkg.tools.fit", mode="module"), "fit"), (Target("/a/ю.py"), "run")],
)
def test_the_default_run_directory_is_in_the_cache_and_named_after_the_target(tmp_path, monkeypatch, target, stem):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = new_run_directory(None, target), new_run_directory(None, target)
    assert first != second
    assert first.parent == tmp_path / "nanprobe" / "runs"
    assert first.name.split("-", 2)[2].rpartition("-")[0] == stem


def test_a_relative_cache_home_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert new_run_directory(None, TARGET).parent == tmp_path / ".cache" / "nanprobe" / "runs"


def test_an_empty_directory_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    assert new_run_directory("out", TARGET) == tmp_path / "out"


def test_nothing_is_ever_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputNotWritable, match="file: is a file; give a directory"):
        new_run_directory(str(tmp_path / "file"), TARGET)
    with pytest.raises(OutputNotWritable, match="is not empty, and is not a nanprobe run"):
        new_run_directory(str(tmp_path), TARGET)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(OutputNotWritable, match="already holds a nanprobe run"):
        new_run_directory(str(tmp_path), TARGET)
    with pytest.raises(OutputNotWritable, match="cannot make the run directory: Not a directory"):
        new_run_directory(str(tmp_path / "file" / "out"), TARGET)
