"""How fast nanprobe is, beside plain training and other tools: `make bench`."""
