"""The run directory: records written line by line as they are measured, and read back whole or cut short.

    RUN/run.json                           what was run: target, plan, versions
    RUN/stages/<stage>/trace.jsonl         one record a line, flushed as the stage runs
    RUN/stages/<stage>/trace-rerun-*.jsonl the same, of a second run for its deep steps only
    RUN/stages/<stage>/output.log          what the script printed
    RUN/diagnosis.json                     the answer, as in `nanprobe.reports.document`
    RUN/sweep.json                         that of a sweep, as in `nanprobe.reports.sweep.document`
    RUN/verification.json                  the remedies that were tried, with `--verify`

Every line of a trace is valid JSON with a "type". Records inside a line are positional arrays, trailing defaults left
out; the first line names their fields, so a trace stays readable when a record gains one. Each deep step carries a list
of the strings and source lines it repeats and refers to them by number. Numbers that are not finite are written as
"NaN", "Infinity", "-Infinity".
"""

from nanprobe.storage.layout import (
    DIAGNOSIS_FILE,
    OUTPUT_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    SWEEP_FILE,
    TRACE_FILE,
    Record,
    stage_directory,
    trace_path,
)
from nanprobe.storage.places import LAST, find_run, list_runs, new_run_directory, runs_folder
from nanprobe.storage.reader import TraceTail, read_lines, read_stage
from nanprobe.storage.run import (
    Command,
    RunHead,
    read_head,
    read_run,
    write_document,
    write_json,
    write_run,
    write_sweep_run,
)
from nanprobe.storage.values import from_json_value, name_number, to_json_value
from nanprobe.storage.verification import VERIFICATION_FILE, read_verification, write_verification
from nanprobe.storage.writer import TraceWriter, write_stage

__all__ = [
    "DIAGNOSIS_FILE",
    "LAST",
    "OUTPUT_FILE",
    "RUN_FILE",
    "SCHEMA_VERSION",
    "SWEEP_FILE",
    "TRACE_FILE",
    "VERIFICATION_FILE",
    "Command",
    "Record",
    "RunHead",
    "TraceTail",
    "TraceWriter",
    "find_run",
    "from_json_value",
    "list_runs",
    "name_number",
    "new_run_directory",
    "read_head",
    "read_lines",
    "read_run",
    "read_stage",
    "read_verification",
    "runs_folder",
    "stage_directory",
    "to_json_value",
    "trace_path",
    "write_document",
    "write_json",
    "write_run",
    "write_stage",
    "write_sweep_run",
    "write_verification",
]
