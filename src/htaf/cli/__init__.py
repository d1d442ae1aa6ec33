"""The command `htaf`: one file for each group of verbs."""


def main() -> None:
    """Entry point of the command."""
    from htaf.cli.app import main as run

    run()
