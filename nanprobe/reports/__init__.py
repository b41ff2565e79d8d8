"""Reports: a run and its diagnosis as text, one renderer a format. No torch here."""
