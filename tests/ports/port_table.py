"""The table of ports for the kill rounds, by the name that ``make ports`` knows."""

from .iceberg_spark import IS_FOR_THIS_SPARK
from .kafka_ports import KafkaSource, KafkaTarget, KafkaTargetOnce
from .lake_ports import DeltaSource, DeltaTarget, IcebergSparkTarget, IcebergTarget
from .rocketmq_ports import RocketMQTarget
from .sql_ports import MariaDBTarget, ParquetTarget, PostgresTarget

PORTS = {
    "postgresql": PostgresTarget,
    "mariadb": MariaDBTarget,
    "parquet": ParquetTarget,
    "kafka": KafkaTarget,
    "kafka-once": KafkaTargetOnce,
    "kafka-source": KafkaSource,
    "rocketmq": RocketMQTarget,
    "delta": DeltaTarget,
    "delta-source": DeltaSource,
    "iceberg": IcebergTarget,
}
if IS_FOR_THIS_SPARK:
    PORTS["iceberg-spark"] = IcebergSparkTarget
