"""A long search: thousands of random programs, and the figures. `make fuzz` runs it.

Unlike the test, it does not stop at the first miss; the scripts of all misses are written down.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import zlib
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.drawing import programs
from fuzz.faults import FAULTS
from fuzz.judging import expect, judge
from fuzz.programs import Program
from fuzz.running import diagnose_program
from fuzz.tally import Miss, Tally


def search(kind: str | None, examples: int, number: int, tally: Tally) -> None:
    """Judge so many programs with a kind of fault, drawn from a seed."""

    @seed(zlib.crc32(f"{kind}".encode()) ^ number)
    @settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(programs(kind))
    def each(program: Program) -> None:
        expected = expect(program)
        if expected is None:
            tally.unsound[kind or "no fault"] += 1
            return
        diagnosis = diagnose_program(program)
        tally.add(kind, Miss(program, expected, diagnosis, judge(program, expected, diagnosis)))

    each()


def main() -> int:
    """Search, and print the figures; 1 when there was a miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=40, help="programs for each kind of fault")
    parser.add_argument("--sound", type=int, default=400, help="programs without a fault")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="kinds of fault, with commas between")
    parser.add_argument("--misses", type=Path, default=Path(".hypothesis/misses"), help="folder for the scripts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    number = secrets.randbelow(2**32) if options.seed is None else options.seed
    print(f"seed {number}", flush=True)
    tally, started = Tally(), time.monotonic()
    kinds = options.only.split(",") if options.only else [None, *FAULTS]
    for kind in kinds:
        name = None if kind in (None, "none") else kind
        search(name, options.sound if name is None else options.examples, number, tally)
        print(
            f"\r{kind or 'no fault':24} {len(tally.misses)} misses, {time.monotonic() - started:.0f} s", file=sys.stderr
        )
    print("\n".join(tally.lines()))
    tally.save(options.misses)
    count = sum(sum(g.values()) for g in tally.grades.values())
    print(f"{count} programs, {len(tally.misses)} misses, {sum(tally.unsound.values())} left out, seed {number}")
    return 1 if tally.misses else 0


if __name__ == "__main__":
    sys.exit(main())
