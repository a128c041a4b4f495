"""Staged messages as the tests see them."""

from rmq_spark.client.staging import stage, sweep
from rmq_spark.protocol import staging
from rmq_spark.protocol.bodies import Body
from rmq_spark.topics.keys import sink_key

QUERY = "a-query"
NAME = f"{QUERY}:1:0:a"


class Book:
    """What Redis keeps of the batch that a query sealed last."""

    def __init__(self, server, query, key_prefix="", **forget):
        self.server = server
        self.key = sink_key(query, key_prefix)
        self.forget = forget

    def seal(self, batch, manifest):
        return self.server.ask(staging.seal(self.key, batch, manifest))

    def announce(self, batch, manifest, name):
        return self.server.ask(staging.announce(self.key, batch, manifest, name))

    def conclude(self, batch, name):
        return self.server.ask(staging.conclude(self.key, batch, name, **self.forget))

    def unseal(self, batch, manifest):
        return self.server.ask(staging.unseal(self.key, batch, manifest, **self.forget))

    def last(self):
        return self.server.ask(staging.last_sealed(self.key))


class Stages:
    """The stages of a topic of one slot."""

    def __init__(self, slot):
        self.slot = slot
        self.redis = slot.redis
        self.book = Book(slot.queue.server, QUERY, slot.broker.key_prefix)

    def stage(self, *args):
        stage(self.slot.queue, *args)

    def discard(self, names):
        return self.slot.queue.ask(staging.discard, names)

    def sweep(self, *args):
        return sweep(self.slot.queue, *args)

    def put(self, contents, name=NAME, score=1000, held=0):
        """Stages contents with one score. Returns how many the stage then holds."""
        of_slot = {0: held}
        pairs = [value for content in contents for value in (score, content)]
        self.stage(name, {0: pairs}, of_slot)
        return of_slot[0]

    def stage_with_bodies(self, keys, score=1000):
        """Stages keys, each with itself as its payload. Returns how many the stage then holds."""
        of_slot = {0: 0}
        pairs = [value for key in keys for value in (score, key)]
        bodies = [value for key in keys for value in (key, Body(payload=key).pack())]
        self.stage(NAME, {0: pairs}, of_slot, {0: bodies})
        return of_slot[0]

    def publish(self, totals):
        """Publishes stages, by name, of so many messages."""
        return self.slot.queue.ask(staging.publish, {0: totals})

    @property
    def begun(self):
        return self.slot.queue.ask(staging.begun, [0])[0]

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
