"""An archive of Spark's classes, so that the many JVMs of a full round start in half the time."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from program import SESSION, Program

JAVA = "spark.driver.extraJavaOptions"
# Writing it takes long on a machine that has much else to do.
WRITTEN_S = 600.0


def written(folder: Path) -> dict[str, str]:
    """Writes one with a driver that reads a file, and returns the setting that uses it."""
    archive, some = folder / "spark.jsa", folder / "some"
    some.mkdir()
    pq.write_table(pa.table({"content": ["some"], "deliveryCount": [1]}), some / "one.parquet")
    settings = {JAVA: f"{SESSION[JAVA]} -XX:ArchiveClassesAtExit={archive}"}
    program = Program(folder / "class-archive.log", settings)
    program.order("collect", "some", out=str(some), into=str(folder / "again.parquet"))
    program.wait("collect", "some", within_s=WRITTEN_S)
    program.close(WRITTEN_S)
    # Without it, such as of another kind of Java, a JVM starts all the same.
    return {JAVA: f"{SESSION[JAVA]} -XX:SharedArchiveFile={archive}"}
