"""What users change: topics, single messages, and the dead in bulk.

Each change is a function that takes the fields of a form and returns a Note. Every change is logged
with its user, and never with a content.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmq_spark.client.messages import Message, requeue_score
from rmq_spark.client.queue import Queue
from rmq_spark.console.bulk_jobs import Action
from rmq_spark.console.console import Console
from rmq_spark.console.notes import Note
from rmq_spark.errors import InvalidOption
from rmq_spark.options.topic_options import (
    DEAD_RETENTION,
    MAX_RETRIES,
    ON_EXPIRY,
    RETRY_BACKOFF,
    VALUES,
)
from rmq_spark.protocol import sending
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import group_text
from rmq_spark.topics.parsers import moment_or_relative
from rmq_spark.views.browsing import Position
from rmq_spark.views.shown_texts import messages_text

_log = logging.getLogger(__name__)

# The fields of a form: each may come several times.
Form = Mapping[str, list[str]]
Change = Callable[[Console, Form, str, str], Note]
_SETTINGS = (
    ("max_retries", MAX_RETRIES),
    ("retry_backoff", RETRY_BACKOFF),
    ("on_expiry", ON_EXPIRY),
    ("dead_retention", DEAD_RETENTION),
)


def field_of(form: Form, name: str) -> str:
    """Return a field of a form; empty if it is missing."""
    return (form.get(name) or [""])[0]


def pause(console: Console, form: Form, user: str, topic: str) -> Note:
    """Stop delivery from a topic. Raises UnknownTopic."""
    console.broker.alter(topic, paused=True)
    _note(user, "paused", topic)
    return Note(f"{topic} is paused: no consumer gets new messages. Sending still works.")


def resume(console: Console, form: Form, user: str, topic: str) -> Note:
    """Resume delivery from a topic. Raises UnknownTopic."""
    console.broker.alter(topic, paused=False)
    _note(user, "resumed", topic)
    return Note(f"{topic} delivers again.")


def alter(console: Console, form: Form, user: str, topic: str) -> Note:
    """Change the settings of a topic that the form has. Raises UnknownTopic, InvalidOption."""
    changes: dict[str, Any] = {
        name: option.called(name).parse(field_of(form, name))
        for name, option in _SETTINGS
        if name in form
    }
    if not changes:
        raise InvalidOption(
            f"No setting is given. Accepted: {', '.join(name for name, _ in _SETTINGS)}."
        )
    console.broker.alter(topic, **changes)
    # In one line, for the log.
    told = ", ".join(f"{name}={' '.join(field_of(form, name).split())}" for name in changes)
    _note(user, f"set {told} of", topic)
    return Note(f"{topic}: {told}. Senders and consumers see it from their next batch.")


def send(console: Console, form: Form, user: str, topic: str) -> Note:
    """Send one message. Raises UnknownTopic, InvalidOption, InvalidMessage."""
    queue = console.queue(topic, None)
    definition = queue.definition
    content: bytes | None = field_of(form, "content").encode()
    key = field_of(form, "key").encode() if definition.keyed else None
    basis = field_of(form, "slot_basis")
    values = _values(queue, form)
    message = Message(content, slot_basis=basis or None, key=key, **values)
    sent = queue.send([message])
    _note(user, "sent a message to", topic)
    told = "new" if sent.new else "merged with one that waits"
    return Note(f"One message was sent to {topic}; it is {told}.")


def _values(queue: Queue, form: Form) -> dict[str, Any]:
    """Parse the values that the type of the topic takes. Raises InvalidOption."""
    values = {}
    for of in queue.definition.type.values:
        text = field_of(form, of.keyword).strip()
        if text:
            parser = moment_or_relative(queue.now_ms) if of.can_be_past else of.parser
            option = VALUES[of.keyword]
            values[of.keyword] = type(option)(option.name, parser, option.help).parse(text)
    return values


def requeue(console: Console, form: Form, user: str, topic: str) -> Note:
    """Requeue chosen dead messages. Raises UnknownTopic, InvalidMessage."""
    queue, _ = _queue_and_kind(console, form, topic)
    score = _requeue_score(queue, form)
    chosen, gone = _chosen(console, form)
    by_slot = _by_slot(chosen, lambda position: (score, position.name))
    return _done(user, queue, queue.ask(sending.requeue, by_slot), "requeued", gone)


def purge(console: Console, form: Form, user: str, topic: str) -> Note:
    """Delete chosen messages of a queue for good. Raises UnknownTopic, InvalidOption."""
    queue, kind = _queue_and_kind(console, form, topic)
    if kind is QueueKind.PREPARE:
        raise InvalidOption("Messages that a consumer holds cannot be deleted.")
    chosen, gone = _chosen(console, form)
    by_slot = _by_slot(chosen, lambda position: (position.score, position.name))
    return _done(user, queue, queue.ask(sending.purge, by_slot, kind), "deleted", gone)


def cancel(console: Console, form: Form, user: str, topic: str) -> Note:
    """Cancel chosen messages that nobody has claimed, in one group. Raises UnknownTopic."""
    queue, _ = _queue_and_kind(console, form, topic)
    chosen, gone = _chosen(console, form)
    by_slot = _by_slot(chosen, lambda position: (position.name,))
    return _done(user, queue, queue.cancel(by_slot), "cancelled", gone)


def start_job(console: Console, form: Form, user: str, topic: str) -> Note:
    """Begin to requeue or purge all dead messages, or those of a reason. Raises InvalidOption."""
    queue, _ = _queue_and_kind(console, form, topic)
    action = _action_of(form)
    score = _requeue_score(queue, form) if action is Action.REQUEUE else 0
    job = console.jobs.start(action, queue, user, field_of(form, "reason") or None, score)
    _note(user, f"began job {job.number} to {action} the dead of", topic)
    return Note(f"Job {job.number} has begun to {action} dead messages of {topic}.")


def stop_job(console: Console, form: Form, user: str, number: str) -> Note:
    """Stop a job. Raises InvalidOption."""
    job = console.jobs.stop(_number_of(number))
    _note(user, f"stopped job {job.number} on", job.queue.definition.name)
    return Note(f"Job {job.number} has stopped after {messages_text(job.done)}.")


def resume_job(console: Console, form: Form, user: str, number: str) -> Note:
    """Let a stopped job go on. Raises InvalidOption."""
    job = console.jobs.resume(_number_of(number))
    _note(user, f"resumed job {job.number} on", job.queue.definition.name)
    return Note(f"Job {job.number} goes on.")


def _number_of(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidOption(f"There is no job {text[:20]!r}.")
    return int(text)


def _action_of(form: Form) -> Action:
    try:
        return Action(field_of(form, "action"))
    except ValueError:
        raise InvalidOption(
            f"action={field_of(form, 'action')[:50]!r} is not accepted. Accepted: "
            f"{', '.join(Action)}."
        ) from None


def _queue_and_kind(console: Console, form: Form, topic: str) -> tuple[Queue, QueueKind]:
    kind = QueueKind(field_of(form, "queue") or QueueKind.DEAD.value)
    return console.queue(topic, field_of(form, "group")), kind


def _requeue_score(queue: Queue, form: Form) -> int:
    value = Message(b"", **_values(queue, form))
    return requeue_score(value, queue.definition, queue.now_ms())


def _chosen(console: Console, form: Form) -> tuple[list[Position], int]:
    """Return where the chosen messages lie, and how many of them are not known any more."""
    named = form.get("ref", [])
    if not named:
        raise InvalidOption("No message is chosen. Tick the messages first.")
    found = [console.references.find(reference) for reference in named]
    known = [position for position in found if position is not None]
    return known, len(found) - len(known)


def _by_slot(
    chosen: Iterable[Position], values: Callable[[Position], tuple[Any, ...]]
) -> dict[int, list[Any]]:
    by_slot: dict[int, list[Any]] = {}
    for position in chosen:
        by_slot.setdefault(position.slot, []).extend(values(position))
    return by_slot


def _done(user: str, queue: Queue, how_many: int, done: str, gone: int) -> Note:
    topic, group = queue.definition.name, group_text(queue.keys.group)
    _note(user, f"{done} {messages_text(how_many)} in group {group} of", topic)
    rest = f" {messages_text(gone)} could not be found any more." if gone else ""
    return Note(f"{messages_text(how_many)} {done}.{rest}", failed=not how_many)


def _note(user: str, done: str, topic: str) -> None:
    _log.info("rmq console: %s %s topic %s", user, done, topic)


# By the last part of an address, of a topic and of a job.
OF_TOPICS: Mapping[str, Change] = {
    "pause": pause,
    "resume": resume,
    "settings": alter,
    "send": send,
    "requeue": requeue,
    "purge": purge,
    "cancel": cancel,
    "job": start_job,
}
OF_JOBS: Mapping[str, Change] = {"stop": stop_job, "resume": resume_job}
