"""Checks: each recipe's target is run, a few at a time, and compared with what the recipe expects."""

from nanprobe.check.planning import Check, plan_checks, plan_recipe
from nanprobe.check.pool import run_checks

__all__ = ["Check", "plan_checks", "plan_recipe", "run_checks"]
