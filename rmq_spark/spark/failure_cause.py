"""The cause of a Spark failure, in one line. Imports nothing of Spark, which may be missing."""

_PACKAGES = {"pyspark", "py4j"}


def is_of_spark(error: Exception) -> bool:
    """Return whether Spark, or the bridge to its JVM, has raised an error."""
    return any(kind.__module__.partition(".")[0] in _PACKAGES for kind in type(error).__mro__)


def cause(error: Exception) -> str:
    """Extract the line that states the cause from a Spark error, among traces and plans."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traced = [at for at, line in enumerate(lines) if "Traceback (most recent" in line]
    if traced:
        # In a Python traceback, only the frames are indented: the first other line is the error.
        lines = [line for line in lines[traced[-1] + 1 :] if not line.startswith(" ")]
    if len(lines) > 1 and "An error occurred while calling" in lines[0]:
        lines = lines[1:]
    return lines[0].removeprefix(": ") if lines else type(error).__name__
