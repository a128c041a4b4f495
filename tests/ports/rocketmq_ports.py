"""RocketMQ for the kill rounds: the target of an export, at least once."""

from ..rocketmq_broker import RocketMQBroker
from .kafka_ports import ID

TOPIC = "delivered"


class RocketMQTarget:
    """A topic of a broker of its own."""

    job, is_once = "export", False

    def __enter__(self):
        self.broker = RocketMQBroker().__enter__()
        self.broker.create(TOPIC)
        return self

    def __exit__(self, *_):
        self.broker.__exit__()

    @property
    def arguments(self):
        return [
            *("--to", "rocketmq", "--target-option", f"endpoints={self.broker.url}"),
            *("--target-option", f"topic={TOPIC}"),
        ]

    def delivered(self):
        for message in self.broker.messages(TOPIC):
            yield int(message.body), tuple(message.properties[name] for name in ID)

    def figures(self):
        return {}
