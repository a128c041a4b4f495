"""What was logged within a test."""


def logged(caplog, about=""):
    """Return the messages alone, a line each; about: only those that name it.

    What earlier tests have left at work in this process may log, too.

    `caplog.text` would hold them as JSON once PySpark has logged an error of its own in this
    process: its logger changes the formatter of each handler that it is given.
    """
    return "".join(f"{message}\n" for message in caplog.messages if about in message)
