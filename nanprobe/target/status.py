"""What a stage's process and its parent agree on. No torch."""

import signal

STACK_FILE = "stack.txt"  # in the stage's directory: where the script stood on a crash, or when the launcher asked
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)  # asks
INTERNAL_ERROR_STATUS = 86  # nanprobe itself failed; our choice, because scripts use the low ones
