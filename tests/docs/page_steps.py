"""What the programs made of pages call for the blocks that are no Python."""

import re
import subprocess
import sys

# A command that a page ends after some seconds may need more beside other tests.
SLOWER = 4


def run_shell(text):
    """Runs a sh block as a terminal would, in this folder; an error ends the page."""
    sys.stdout.flush()
    text = re.sub(r"(?m)^(timeout .*?)(\d+) ", lambda m: f"{m[1]}{int(m[2]) * SLOWER} ", text)
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", text], check=True)


def run_sql(text):
    """Runs the statements of a sql block in the page's session, and prints what they give."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    for statement in text.split(";"):
        if statement.strip():
            spark.sql(statement).show(truncate=False)
