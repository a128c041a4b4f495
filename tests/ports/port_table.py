"""The table of ports for the kill rounds, by the name that ``make ports`` knows."""

from .kafka_ports import KafkaSource, KafkaTarget, KafkaTargetOnce

PORTS = {
    "kafka": KafkaTarget,
    "kafka-once": KafkaTargetOnce,
    "kafka-source": KafkaSource,
}
