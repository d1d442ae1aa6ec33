"""The one base of errors that a user can cause."""


class HtafError(Exception):
    """Its message is one sentence for the user: the command prints it without a traceback and exits with 1."""
