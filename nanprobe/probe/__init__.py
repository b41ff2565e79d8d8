"""What watches a run; it never judges, prints or changes a gradient."""
