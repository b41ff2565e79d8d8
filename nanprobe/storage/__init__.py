"""The run directory: records written line by line as they are measured, and read back whole or cut short.

    RUN/run.json                           what was run: target, plan, versions
    RUN/stages/<stage>/trace.jsonl         one record a line, flushed as the stage runs
    RUN/stages/<stage>/trace-rerun-*.jsonl the same, of a second run for its deep steps only
    RUN/stages/<stage>/output.log          what the script printed
    RUN/diagnosis.json                     the answer, as in `nanprobe.reports.document`
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
    TRACE_FILE,
    Record,
    stage_directory,
    trace_path,
)
from nanprobe.storage.reader import TraceTail, read_stage
from nanprobe.storage.run import new_run_directory, read_run, write_document, write_json, write_run
from nanprobe.storage.values import from_json_value, name_number, to_json_value
from nanprobe.storage.verification import VERIFICATION_FILE, read_verification, write_verification
from nanprobe.storage.writer import TraceWriter, write_stage

__all__ = [
    "DIAGNOSIS_FILE",
    "OUTPUT_FILE",
    "RUN_FILE",
    "SCHEMA_VERSION",
    "TRACE_FILE",
    "VERIFICATION_FILE",
    "Record",
    "TraceTail",
    "TraceWriter",
    "from_json_value",
    "name_number",
    "new_run_directory",
    "read_run",
    "read_stage",
    "read_verification",
    "stage_directory",
    "to_json_value",
    "trace_path",
    "write_document",
    "write_json",
    "write_run",
    "write_stage",
    "write_verification",
]
