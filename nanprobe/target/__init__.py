"""How the user's code is run: found and checked by the parent, executed in children of a preloaded fork server."""
