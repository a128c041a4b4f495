"""The topics of a Redis database: create, change, list and delete them."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rmq_spark.client.hints import (
    check_agrees,
    check_groups,
    command_line,
    creation,
    describe_missing,
)
from rmq_spark.client.queue import DEFINITION_AGE_S, Queue
from rmq_spark.errors import (
    GroupNotEmpty,
    InvalidOption,
    RmqError,
    ScriptFailed,
    ServerError,
    UnknownTopic,
)
from rmq_spark.protocol import claiming, reading, returning
from rmq_spark.protocol.calls import CALLS_A_PIPELINE, Call, all_of, fields_of
from rmq_spark.protocol.names import ScopedName
from rmq_spark.protocol.packing import in_parts
from rmq_spark.redis.server import Server
from rmq_spark.topics.definition import (
    DEFAULT_SLOT_AMOUNT,
    FLAGS,
    LASTING,
    TopicDefinition,
    check_key_prefix,
    check_slot_amount,
    check_topic_name,
    group_text,
    parse_group,
    parse_settings,
)
from rmq_spark.topics.keys import DEFAULT_GROUP, Keys, consumer_key, deletions_key, topics_key
from rmq_spark.topics.parsing import Duration
from rmq_spark.topics.types import TopicType, parse_topic_type
from rmq_spark.topics.verdicts import parse_delay_ms

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
# A sender stores by a definition that it has read up to DEFINITION_AGE_S before its call.
_SENDERS_KNOW_S = 1.5 * DEFINITION_AGE_S
# How long a deletion that was killed keeps others from creating the topic. One of 65 536 slots took
# 5 s; each slot of a group adds a ms.
_DELETION_MS = 20_000
_LOOK_S = 0.1
# Called with the name of what cannot be read or computed, and why. The others go on.
Failed = Callable[[str, RmqError], None]


class Warned:
    """A log of what is left out, in which each error stands once."""

    def __init__(self) -> None:
        self._told = set[tuple[str, str]]()

    def __call__(self, name: str, error: RmqError) -> None:
        """Log that something of this name is left out."""
        if (name, str(error)) not in self._told:
            self._told.add((name, str(error)))
            _log.warning("rmq: %s is left out: %s", name, error)


class Administration:
    """The topics of one Redis database. ``key_prefix`` separates them from others there."""

    def __init__(self, server: Server, *, key_prefix: str = "") -> None:
        self.server = server
        self.key_prefix = check_key_prefix(key_prefix)
        self.left_out = Warned()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"

    def find(self, name: str) -> TopicDefinition | None:
        """Return a topic's definition, or None. Raises InvalidOption for an impossible name."""
        text = self._text(name)
        return TopicDefinition.from_json(name, text) if text else None

    def definition(self, name: str) -> TopicDefinition:
        """Return the definition of a topic. Raises UnknownTopic if it does not exist."""
        return self._read(name)[1]

    def _read(self, name: str, *, use: bool = False) -> tuple[bytes, TopicDefinition]:
        """Return a definition as Redis keeps it, and parsed. use: for the error's remedy."""
        text = self._text(name)
        return text, self._parsed(name, text, use)

    def _text(self, name: str) -> Any:
        check_topic_name(name)
        return self.server.command("HGET", topics_key(self.key_prefix), name)

    def _parsed(self, name: str, text: bytes | None, use: bool) -> TopicDefinition:
        if text:
            return TopicDefinition.from_json(name, text)
        remedy = (
            f" Create it with {creation(self, name)}, with broker.create, or with a first write "
            "that sets topicType. A reader never creates a topic."
        )
        raise UnknownTopic(f"{describe_missing(self, name)}{remedy if use else ''}")

    def definitions(self, names: Sequence[str]) -> list[TopicDefinition]:
        """Return the definitions of several topics in one round trip. Raises UnknownTopic."""
        if not names:
            return []
        checked = map(check_topic_name, names)
        texts = self.server.command("HMGET", topics_key(self.key_prefix), *checked)
        return [self._parsed(name, text, True) for name, text in zip(names, texts, strict=True)]

    def topics(
        self,
        is_wanted: Callable[[str], object] = lambda name: True,
        failed: Failed | None = None,
    ) -> list[TopicDefinition]:
        """Return the definitions of all topics whose name ``is_wanted`` accepts, sorted by name.

        One that cannot be read is left out. failed: called with its name and the error; without it,
        the log has a warning, once.
        """
        key = topics_key(self.key_prefix)
        return parse_fields(self, key, TopicDefinition.from_json, failed, is_wanted)

    def define(
        self,
        name: str,
        topic_type: TopicType | str | None = None,
        slot_amount: int | str | None = None,
        **settings: Any,
    ) -> TopicDefinition:
        """Return the definition of a topic. The first call creates the topic.

        Once the topic exists, you can leave out its type and number of slots; if you give them,
        they must agree. ``settings`` apply when the topic is created; a warning in the log names
        those that an existing topic has in another way. They are the other fields of
        TopicDefinition, such as max_retries, keyed or rate, without ``_ms``: retry_backoff takes
        text such as "10s, 30s, 1m", "none" or "rocketmq"; other times take text such as "30d" or
        "none", a timedelta, or ms. An existing topic must agree in keyed and payload, and have all
        groups.

        Raises TopicMismatch, which shows both definitions, if they do not agree. Raises
        UnknownTopic if the topic does not exist and no type is given.
        """
        if isinstance(topic_type, str):
            topic_type = parse_topic_type(topic_type)
        amount = None if slot_amount is None else check_slot_amount(slot_amount)
        fields = parse_settings("set", settings)
        found = self.find(name)
        if found is None and topic_type is not None:
            new = TopicDefinition(name, topic_type, amount or DEFAULT_SLOT_AMOUNT, **fields)
            self._complete_deletion(name)
            self.server.command("HSETNX", topics_key(self.key_prefix), name, new.to_json())
            if _any_paused(new):
                self._mark_slots(name)
        found = found or self._read(name, use=True)[1]
        check_agrees(
            found,
            topic_type,
            amount,
            {name: fields[name] for name in LASTING if name in fields},
            "To use the topic as it is, leave out what differs, or in Python call broker.queue("
            f"{name!r}). For another one, choose another name, or delete this one with all its "
            f"messages: {command_line(self, 'delete', name)}, or broker.delete({name!r}).",
        )
        check_groups(found, fields.get("groups", ()), command_line(self, "alter", name))
        kept = [
            f"{keyword}={found.text_of(keyword)}"
            for keyword, setting in FLAGS.items()
            if setting.field in fields and setting.of(found) != fields[setting.field]
        ]
        if kept:
            _log.warning(
                "rmq: topic %s exists, and keeps %s. To change that: broker.alter or rmq alter",
                *(name, ", ".join(kept)),
            )
        return found

    def create(
        self,
        name: str,
        topic_type: TopicType | str,
        slot_amount: int | None = None,
        **settings: Any,
    ) -> TopicDefinition:
        """Create a topic, or return an existing one of this type and slot amount. See define.

        Without a slot amount, a new topic gets 64, and an existing one may have any.
        """
        return self.define(name, topic_type, slot_amount, **settings)

    def alter(self, name: str, **changes: Any) -> TopicDefinition:
        """Change settings of a topic: those of define, except keyed and payload.

        Senders and consumers see the change from their next batch or start. A pause begins
        earlier: once the call has returned, nobody makes a claim. Raises UnknownTopic, and
        InvalidOption for a change that is not accepted, such as leaving out a group that exists.
        """
        fields = parse_settings("changed", changes)

        def change(old: TopicDefinition) -> TopicDefinition:
            new = old.changed(**fields)
            gone = [group_text(group) for group in old.groups if group not in new.groups]
            if gone:
                raise InvalidOption(
                    f"groups={','.join(map(group_text, new.groups))} leaves out {', '.join(gone)}, "
                    f"which topic {name} has. To remove a group, use broker.remove_group, or "
                    f"{command_line(self, 'alter', name, '--remove-group', gone[0])}."
                )
            return new

        new = self._change(name, change)[1]
        if _any_paused(new) or fields.keys() & {"paused", "paused_groups", "groups"}:
            self._mark_slots(name)
        if fields.get("exclusive") is False:
            forget_epochs(self, new)
        return new

    def _change(
        self, name: str, change: Callable[[TopicDefinition], TopicDefinition]
    ) -> tuple[TopicDefinition, TopicDefinition]:
        """Replace a definition, again if it has changed meanwhile. Return the old and the new."""
        while True:
            text, old = self._read(name)
            new = change(old)
            for group in new.groups:  # first: a group that is defined as running must deliver
                is_new = group not in old.groups  # an earlier one may have left a hold or a pause
                if is_new:
                    self._mark(new, group, claiming.HOLD_ENDS)
                if (is_new or old.is_paused(group)) and not new.is_paused(group):
                    self._mark(new, group, claiming.PAUSE_ENDS)
            if new == old or self._replace(name, text, new.to_json()):
                return old, new

    def pause(self, name: str, *, group: str | None = None) -> TopicDefinition:
        """Let nobody, or no consumer of one group, get new messages of a topic.

        Once the call has returned, nobody makes a claim. Sending still works, and messages that
        are in progress can be committed. Raises UnknownTopic, and InvalidOption for no such group.
        """
        return self._pause(name, group, True)

    def resume(self, name: str, *, group: str | None = None) -> TopicDefinition:
        """Let all, or the consumers of one group, get messages again. Raises like pause.

        Without a group, it ends the pause of the whole topic, which those of single groups outlast;
        if there is none, it ends those of all groups. Ends a hold, too.
        """
        resumed = self._pause(name, group, False)
        self._hold(name, claiming.HOLD_ENDS, group)
        return resumed

    def hold(self, name: str, delay: Duration, *, group: str | None = None) -> None:
        """Let nobody, or no consumer of one group, get new messages of a topic for ``delay``.

        delay: such as "30s"; a timedelta; ms. A longer hold or a pause stays; ``resume`` ends a
        hold. A function of a listener raises rmq_spark.Hold instead. Raises like pause.
        """
        self._hold(name, parse_delay_ms(delay), group)

    def _hold(self, name: str, for_ms: int, group: str | None) -> None:
        queue = self.queue(name)
        one = None if group is None else queue.of_group(group and parse_group(group)).keys.group
        groups = queue.definition.groups if one is None else (one,)
        queue.ask(returning.hold, dict.fromkeys(groups, for_ms))

    def _pause(self, name: str, group: str | None, paused: bool) -> TopicDefinition:
        wanted = None
        if group is not None:
            wanted = self.queue(name, group=group and parse_group(group)).keys.group

        def change(old: TopicDefinition) -> TopicDefinition:
            if wanted is None:  # the pauses of single groups outlast that of the whole topic
                groups = old.paused_groups if paused or old.paused else ()
                return old.changed(paused=paused, paused_groups=groups)
            alone = [one for one in old.paused_groups if one != wanted]
            if paused:
                return old.changed(paused_groups=(*alone, wanted))
            others = [one for one in old.groups if one != wanted and old.is_paused(one)]
            return old.changed(paused=False, paused_groups=tuple(others))

        new = self._change(name, change)[1]
        self._mark_slots(name)
        return new

    def lower_epochs(self, name: str, *, group: str = DEFAULT_GROUP) -> int:
        """Let the slots of an exclusive topic take any epoch again. Return how many had one.

        Use it after you replace a ZooKeeper ensemble, because the epochs of the new one start
        again. First stop the queries that use the old one; otherwise they can claim, too. Raises
        UnknownTopic.
        """
        queue = self.queue(name, group=group)
        had = [
            slot
            for slot, epoch in zip(queue.slots, queue.ask(reading.epochs, queue.slots), strict=True)
            if epoch
        ]
        self._in_parts(("HSET", queue.keys.consumers(slot), reading.EPOCH_FIELD, 0) for slot in had)
        return len(had)

    def delete(self, name: str) -> None:
        """Delete a topic with everything that it holds, and its schedules. Raises UnknownTopic.

        Takes a second and a half, until all senders know of it, and deletes what they have sent
        meanwhile. Nobody can create a topic of this name before: ``create`` waits.
        """
        with self._deleting(self.definition(name)):
            is_gone = False
            while not is_gone:
                text, old = self._read(name)
                if self._may_replace(name, text):
                    # First: after a stop, the next call finds the definition.
                    self._delete_contents(old)
                    is_gone = self._replace(name, text, "")
            self.server.pause(_SENDERS_KNOW_S)
            if self.find(name) is None:  # else the deletion had lapsed
                self._delete_contents(old)

    @contextmanager
    def _deleting(self, topic: TopicDefinition) -> Iterator[None]:
        """Let nobody create a topic of this name: the deletion would empty that one, too."""
        key, name = deletions_key(self.key_prefix), topic.name
        mark, is_marked = "", False
        while not is_marked:
            lapsed = self._wait_for_deletion(name)
            lasts_ms = _DELETION_MS + topic.slot_amount * len(topic.groups)
            mark = f"{self.server.now_ms() + lasts_ms} {topic.to_json()}"
            # By a script, which may write in a Redis that is full.
            is_marked = replace_field(self.server, key, name, lapsed, mark)
        left = ""
        try:
            yield
        except UnknownTopic:  # another one has deleted it
            raise
        except BaseException:
            with suppress(RmqError):
                if self.find(name) is None:  # whoever creates the topic completes the deletion
                    left = f"{self.server.now_ms() + int(1000 * _SENDERS_KNOW_S)} {topic.to_json()}"
            raise
        finally:
            with suppress(ServerError):
                replace_field(self.server, key, name, mark.encode(), left)

    def _wait_for_deletion(self, name: str) -> bytes:
        """Wait until no deletion of a topic is in progress. Return the mark of a killed one."""
        is_told = False
        while text := self.server.command("HGET", deletions_key(self.key_prefix), name):
            left_ms = int(text.split()[0]) - self.server.now_ms()
            if left_ms <= 0:
                return bytes(text)
            if not is_told:
                _log.warning(
                    "rmq: topic %s is being deleted. Waiting until that is done, or for %.0f s if "
                    "the program that deletes it was killed",
                    *(name, left_ms / 1000),
                )
            is_told = True
            self.server.pause(min(left_ms / 1000, _LOOK_S))
        return b""

    def _complete_deletion(self, name: str) -> None:
        """Wait for a deletion of a topic that is in progress. Complete one that was killed."""
        if mark := self._wait_for_deletion(name):
            topic = TopicDefinition.from_json(name, mark.split(maxsplit=1)[1])
            with self._deleting(topic):
                if self.find(name) is None:
                    self._delete_contents(topic)

    def _delete_contents(self, topic: TopicDefinition) -> None:
        from rmq_spark.client.schedules import remove_of  # which imports this module

        remove_of(self, topic.name)  # before their notes
        for group in topic.groups:
            self._delete_group(topic, group)
        keys = Keys(topic.name, self.key_prefix)
        slots = range(topic.slot_amount)
        stages = self._in_parts(("HKEYS", keys.stages(slot)) for slot in slots)
        self._in_parts(
            ("UNLINK", *(keys.stage(slot, stage.decode()) for stage in of_slot))
            for slot, of_slot in zip(slots, stages, strict=True)
            if of_slot
        )
        kinds = keys.stages, keys.schedules, keys.recent
        self._in_parts(("UNLINK", *(kind(slot) for kind in kinds)) for slot in slots)

    def delete_left(self, topic: TopicDefinition, group: str) -> None:
        """Delete what is left of a group that was removed, unless it exists again.

        Senders learn of that within DEFINITION_AGE_S, and store messages until then.
        """
        now = self.find(topic.name)
        if now is None or group not in now.groups:
            self._delete_group(topic, group)

    def _delete_group(self, topic: TopicDefinition, group: str) -> None:
        keys = Keys(topic.name, self.key_prefix, group)
        slots = range(topic.slot_amount)
        known = self._in_parts(("HKEYS", keys.consumers(slot)) for slot in slots)
        names = {name.decode() for of_slot in known for name in of_slot}
        runs = [
            consumer_key(consumer, self.key_prefix)
            for name in names
            for consumer in (name, str(ScopedName(topic.name, group, name)))
        ]
        read = self.server.ask(all_of(map(claiming.topics_of, runs)))
        there = self.server.command("HKEYS", topics_key(self.key_prefix))
        others = {name.decode(errors="replace") for name in there} - {topic.name}
        reads = [set((topics or "").split(",")) for topics in read]
        of_topic = (
            key
            for key, of in zip(runs, reads, strict=True)
            if topic.name in of and others.isdisjoint(of)  # else its checkpoint may go on
        )
        self._in_parts(("UNLINK", key) for key in of_topic)
        Queue(self.server, topic, key_prefix=self.key_prefix, group=group).ask(returning.drop)
        self._in_parts(("UNLINK", keys.rate(slot)) for slot in slots)

    def _in_parts(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Run plain commands that may run twice: one for each slot of a topic are very many."""
        return in_parts(list(commands), self.server.commands, CALLS_A_PIPELINE)

    # -- consumer groups

    def add_group(self, name: str, group: str) -> TopicDefinition:
        """Add a consumer group to a topic. It gets the messages of sends that start from now on.

        Does nothing if the group exists. Deletes nothing, so any number of services can add the
        group they need. A group that was removed before keeps copies that senders at work then
        sent to it. Raises UnknownTopic, InvalidOption.
        """
        return self._with_group(name, parse_group(group))

    def _with_group(self, name: str, group: str) -> TopicDefinition:
        old, new = self._change(
            name,
            lambda old: old if group in old.groups else old.changed(groups=(*old.groups, group)),
        )
        # A pause or resume in between did not find a new group.
        if old.is_paused(group) or group not in old.groups:
            self._mark_slots(name)
        return new

    def remove_group(self, name: str, group: str, *, drop: bool = False) -> int:
        """Remove a consumer group from a topic. Return how many messages were deleted with it.

        Dead messages count. If the group holds messages, you must set drop to delete them;
        otherwise the call raises GroupNotEmpty and the group stays. (If messages arrive during the
        removal, the group is put back with them; it may lack messages sent in between.) Senders
        stop sending to the group from their next batch. Copies from a batch in progress stay under
        its keys. Raises UnknownTopic, InvalidOption.
        """
        wanted = parse_group(group)
        text, old = self._read(name)
        left = self.queue(name, group=wanted).figures()  # raises InvalidOption for an unknown group
        if len(old.groups) == 1:
            raise InvalidOption(
                f"group={group_text(wanted)!r} is the only consumer group of topic {name}. "
                f"Accepted: one of several. To delete the topic, use broker.delete({name!r}), or "
                f"{command_line(self, 'delete', name)}.",
                name="group",
            )
        if left.messages and not drop:
            raise GroupNotEmpty(
                f"The consumer group {group_text(wanted)} of topic {name} holds {left.messages} "
                f"message{'' if left.messages == 1 else 's'}: {left.store.count} stored, "
                f"{left.prepare.count} in progress, {left.retry.count} waiting for a retry, "
                f"{left.dead.count} dead. Let a query read them first, or delete them "
                "with drop=True, or --drop."
            )
        new = old.changed(
            groups=tuple(known for known in old.groups if known != wanted),
            paused_groups=tuple(known for known in old.paused_groups if known != wanted),
        )
        dropped = 0
        if left.messages and self._may_replace(name, text):
            # First: after a stop, the next call finds the group.
            dropped = left.messages
            self._delete_group(old, wanted)
        if not self._replace(name, text, new.to_json()):
            return dropped + self.remove_group(name, group, drop=drop)
        gone = Queue(self.server, old, key_prefix=self.key_prefix, group=wanted).figures().messages
        if gone and not drop:  # sent in the meantime
            self._with_group(name, wanted)
            return self.remove_group(name, group, drop=drop)
        self.delete_left(old, wanted)
        return dropped + gone

    def _mark_slots(self, name: str) -> None:
        """Mark all slots as paused or not, and repeat that until the definition stays the same.

        So of several concurrent calls, the last to end marks them by the last definition.
        """
        marked: TopicDefinition | None = None
        while (found := self.find(name)) != marked:
            if topic := found or marked:  # marked, if the topic was deleted since
                for group in topic.groups:
                    paused = found is not None and found.is_paused(group)
                    self._mark(topic, group, None if paused else claiming.PAUSE_ENDS)
            marked = found

    def _mark(self, topic: TopicDefinition, group: str, for_ms: int | None) -> None:
        queue = Queue(self.server, topic, key_prefix=self.key_prefix, group=group)
        queue.ask(claiming.pause, for_ms)

    def _may_replace(self, name: str, read: bytes) -> bool:
        """Return whether a definition is as read. Raises ServerRefused if a change would."""
        key = topics_key(self.key_prefix)
        return bool(self.server.call("alter", [key], [name, read, read]))

    def _replace(self, name: str, read: bytes, new: str) -> bool:
        # Compares texts: another version may write the same definition in another way.
        done = replace_field(self.server, topics_key(self.key_prefix), name, read, new)
        self.server.topics_changed_s = time.monotonic()  # the queues of this program learn it
        return done

    # -- queues

    def queue(self, name: str, *, group: str | None = None) -> Queue:
        """Return the queue of an existing topic in one consumer group. Raises UnknownTopic.

        Messages that you send go to all groups. group: None for the default group. If the topic has
        no default group, you can only send to the queue then: operations that concern one group
        raise InvalidOption. Raises InvalidOption for a group that the topic does not have.
        """
        topic = self._read(name, use=True)[1]
        of = group if group is None or group == DEFAULT_GROUP else parse_group(group)
        return Queue(self.server, topic, key_prefix=self.key_prefix, group=of)


def parse_fields(
    broker: Administration,
    key: str,
    parse: Callable[[str, bytes], _T],
    failed: Failed | None,
    is_wanted: Callable[[str], object] = lambda name: True,
) -> list[_T]:
    """Parse the fields of a hash, sorted by name, without those that cannot be read."""
    found = []
    for field, text in sorted(fields_of(broker.server.command("HGETALL", key))):
        name = field.decode(errors="replace")
        if is_wanted(name):
            try:
                found.append(parse(name, text))
            except ScriptFailed as error:
                (failed or broker.left_out)(name, error)
    return found


def replace_field(server: Server, key: str, field: str | bytes, read: bytes, new: str) -> bool:
    """Replace a field of a hash, or delete it for an empty text. False: it is not as read."""
    repeats = server.repeats
    done = server.call("alter", [key], [field, read, new])
    return done == 1 or (done == 2 and server.repeats > repeats)  # 2: it may be our own work


def new_definition(
    name: str, topic_type: TopicType, slot_amount: int | None, **settings: Any
) -> TopicDefinition:
    """Return the definition with which ``define`` creates a topic. Raises InvalidOption."""
    fields = parse_settings("set", settings)
    return TopicDefinition(name, topic_type, slot_amount or DEFAULT_SLOT_AMOUNT, **fields)


def all_queues(
    broker: Administration, names: Collection[str] | None = None, failed: Failed | None = None
) -> Iterator[Queue]:
    """Yield the queues of all groups of all topics, or of the topics in ``names`` that exist.

    failed: as for ``topics``.
    """
    for topic in broker.topics(lambda name: not names or name in names, failed):
        for group in topic.groups:
            # Not Administration.queue, which would fail if the topic was deleted in the meantime.
            yield Queue(broker.server, topic, key_prefix=broker.key_prefix, group=group)


def forget_epochs(broker: Administration, topic: TopicDefinition) -> bool:
    """Let readers without ZooKeeper into a topic. Return False if it is exclusive, or gone.

    An owner at work can leave its epoch after ``alter``. So such a reader does this again.
    """
    field, slots = reading.EPOCH_FIELD, range(topic.slot_amount)
    of_groups = [Keys(topic.name, broker.key_prefix, group) for group in topic.groups]
    keys = [keys.consumers(slot) for keys in of_groups for slot in slots]
    epochs = in_parts(
        [("HGET", key, field) for key in keys], broker.server.commands, CALLS_A_PIPELINE
    )
    now = broker.find(topic.name)  # behind the epochs: one of a later owner stays
    if now is None or now.exclusive:
        return False
    left = [
        Call("alter", [key], [field, epoch, ""])
        for key, epoch in zip(keys, epochs, strict=True)
        if epoch is not None
    ]
    in_parts(left, broker.server.pipeline, CALLS_A_PIPELINE)
    return True


def _any_paused(topic: TopicDefinition) -> bool:
    return any(map(topic.is_paused, topic.groups))
