"""The targets of an export: files, databases and other formats of Spark.

Read base first: it says what a batch is, and what every target does with it. Each other module has
a Target, and writes the format after which it is named; base writes any other format.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from rmq_spark.errors import InvalidOption
from rmq_spark.jobs.program import DELTA, FILES, ICEBERG, JDBC, KAFKA, ROCKETMQ, place_options
from rmq_spark.sql.database import EXCEPTIONS_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.jobs.targets.base import Target

# The formats with a module of their own, and what makes a target there from a Place.
_OWN = {
    JDBC: "JdbcTarget",
    DELTA: "DeltaTarget",
    ICEBERG: "new_target",
    KAFKA: "KafkaTarget",
    ROCKETMQ: "RocketMQTarget",
}
TESTED = ("parquet", "orc", "json", "csv", "console", *_OWN)
_log = logging.getLogger(__name__)


def chosen_target(spark: SparkSession, given: argparse.Namespace) -> Target:
    if given.format not in TESTED:
        _log.warning(
            "The format %s is not tested with rmq-spark (tested: %s). Each message is written at "
            "least once.",
            *(given.format, ", ".join(TESTED)),
        )
    options = place_options(given)
    if given.exactly_once and given.format != KAFKA:
        raise InvalidOption(
            "--exactly-once is for --to kafka. Files and tables get each message once without it."
        )
    place = {JDBC: options.get("dbtable"), **dict.fromkeys(FILES, options.get("path"))}
    folder = (place.get(given.format) or given.checkpoint).rstrip("/")
    exceptions = given.exceptions or folder + EXCEPTIONS_SUFFIX
    module = import_module(f"{__name__}.{given.format if given.format in _OWN else 'base'}")
    new: Callable[..., Target] = getattr(module, _OWN.get(given.format, "SparkTarget"))
    return new(module.Place(spark, given, options, exceptions))
