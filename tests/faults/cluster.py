"""A Spark cluster of one master and two workers: in local mode Spark never speculates."""

from pathlib import Path

from jobs.flights.spark_cluster import LocalSpark

from .. import programs

SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.speculation.task.duration.threshold": "1500ms",
    "spark.executor.memory": "600m",
    "spark.cores.max": "4",
}


def new_cluster(folder: Path) -> LocalSpark:
    """A speculative twin runs on another host than the task; both are this machine."""
    return LocalSpark(2, cores=2, memory="700m", folder=folder, variables=programs.environment())


def settings_of(cluster: LocalSpark) -> dict[str, str]:
    """For a driver's session."""
    return {**SETTINGS, "spark.master": cluster.master}
