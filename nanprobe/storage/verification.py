"""verification.json: the remedies that were tried for a run's verdict."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nanprobe.errors import RunUnreadable
from nanprobe.findings import Remedy, RemedyCost, Verification
from nanprobe.records import StageName
from nanprobe.storage.layout import SCHEMA_VERSION, check_version
from nanprobe.storage.run import write_json
from nanprobe.storage.values import from_json_value

VERIFICATION_FILE = "verification.json"


def write_verification(run_directory: str | Path, verification: Verification) -> None:
    """Write what was tried beside the run. Raises OutputNotWritable."""
    document = {"schema_version": SCHEMA_VERSION, **asdict(verification)}
    write_json(Path(run_directory) / VERIFICATION_FILE, document)


def read_verification(run_directory: str | Path) -> Verification | None:
    """What was tried in this run; None when nothing was. Raises RunUnreadable when the file is damaged or newer."""
    path = Path(run_directory) / VERIFICATION_FILE
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_bytes())
        check_version(document, path)
        plain = from_json_value({key: value for key, value in document.items() if key != "schema_version"})
        tried = tuple(_remedy(item) for item in plain.pop("tried"))
        return Verification(stage=StageName(plain.pop("stage")), tried=tried, **plain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunUnreadable(f"{path}: cannot be read: {error!r}") from error


def _remedy(plain: dict[str, Any]) -> Remedy:
    known = {f.name for f in fields(Remedy)}
    values = {key: value for key, value in plain.items() if key in known}
    cost = values.pop("cost", None)
    losses = tuple(values.pop("losses", ()))
    return Remedy(**values, losses=losses, cost=None if cost is None else RemedyCost(**cost))
