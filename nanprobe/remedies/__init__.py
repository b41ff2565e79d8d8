"""Remedies: what could be done about a finding, in what order it is worth a try, and whether a try has helped.

Pure functions over findings, traces and the text of the user's files; no torch here. `nanprobe.verify` runs them.
"""
