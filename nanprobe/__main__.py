"""`python -m nanprobe`: the same as the `nanprobe` command."""

import sys

from nanprobe.cli import main

if __name__ == "__main__":
    sys.exit(main())
