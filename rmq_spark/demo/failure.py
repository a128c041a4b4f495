"""What ends the demo early."""

from pyspark.errors import PySparkException


class DemoFailed(Exception):
    """The demo cannot go on; its text is for the user."""


def cause(error: PySparkException) -> str:
    """The line that tells why: of a Python traceback inside it the error, else the first line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traced = [at for at, line in enumerate(lines) if "Traceback (most recent" in line]
    after = lines[traced[-1] + 1 :] if traced else lines
    return next((line for line in after if not line.startswith(" ")), type(error).__name__)
