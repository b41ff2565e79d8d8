"""Remedies put in from outside: what `nanprobe.interventions` names, done to the script that runs in this process."""

from nanprobe.treatment.edited_files import serve_edited_files
from nanprobe.treatment.treat import treat

__all__ = ["serve_edited_files", "treat"]
