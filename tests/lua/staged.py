"""Staged messages as the tests see them."""

from rmq_spark.client.staging import LastSealed, Staging
from rmq_spark.protocol.bodies import Body

QUERY = "a-query"
NAME = f"{QUERY}:1:0:a"


class Stages:
    """The stages of a topic of one slot."""

    def __init__(self, slot):
        self.slot = slot
        self.redis = slot.redis
        self.staging = Staging(slot.queue.server, slot.queue.definition, slot.broker.key_prefix)
        self.book = LastSealed(slot.queue.server, QUERY, slot.broker.key_prefix)

    def put(self, contents, name=NAME, score=1000, held=0):
        """Stages contents with one score. Returns how many the stage then holds."""
        of_slot = {0: held}
        pairs = [value for content in contents for value in (score, content)]
        self.staging.stage(name, {0: pairs}, of_slot)
        return of_slot[0]

    def stage_with_bodies(self, keys, score=1000):
        """Stages keys, each with itself as its payload. Returns how many the stage then holds."""
        of_slot = {0: 0}
        pairs = [value for key in keys for value in (score, key)]
        bodies = [value for key in keys for value in (key, Body(payload=key).pack())]
        self.staging.stage(NAME, {0: pairs}, of_slot, {0: bodies})
        return of_slot[0]

    def publish(self, totals):
        """Publishes stages, by name, of so many messages."""
        return self.staging.publish({0: totals})

    @property
    def begun(self):
        return self.staging.begun([0])[0]

    @property
    def names(self):
        """The stages that are registered and of which nothing is published."""
        return sorted(name for name, begun in self.begun.items() if not begun.published)

    @property
    def evidence(self):
        """Of how many messages each stage that is published tells that they were."""
        return {name: begun.published for name, begun in self.begun.items() if begun.published}

    def list(self, name=NAME):
        return self.redis.lrange(self.slot.keys.stage(0, name), 0, -1)

    def keys(self):
        """Every stage that Redis really holds."""
        pattern = self.slot.keys.stage(0, "*").replace("{", "[{]").replace("}", "[}]")
        return sorted(self.redis.keys(pattern))
