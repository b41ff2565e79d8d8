"""The command line: the only place that prints and exits. Torch is never loaded here, pandas late if at all."""

from __future__ import annotations

from typing import Annotated

import typer

import nanprobe
from nanprobe.cli import check, compare, diagnose, env, explain, init, recipes, report, sweep_scale
from nanprobe.cli.application import run

app = typer.Typer(
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Says why a PyTorch training produced NaN, Inf or dead gradients: what broke, why, and what to do.",
)
# In the order of --help.
app.command()(diagnose.diagnose)
app.command("sweep-scale")(sweep_scale.sweep_scale)
app.command()(check.check)
app.command()(report.report)
app.command()(compare.compare)
app.command()(recipes.recipes)
app.command()(init.init)
app.command()(explain.explain)
app.command()(env.env)


def main(argv: list[str] | None = None) -> int:
    """The `nanprobe` command; returns its exit code. Everything after the first `--` belongs to the user's script."""
    return run(app, argv)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nanprobe {nanprobe.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
