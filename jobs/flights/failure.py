"""What ends the demo early."""


class DemoFailed(Exception):
    """The demo cannot go on; its text is for the user."""
