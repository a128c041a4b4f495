"""What users change: topics, single messages, and the dead in bulk.

Each change is a function that takes the fields of a form and returns a Note. Every change is logged
with its user, and never with a content.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rmq_spark.client import repair
from rmq_spark.client.messages import Message, requeue_score
from rmq_spark.client.queue import Queue
from rmq_spark.console.jobs import Action, BulkJob, JobState
from rmq_spark.console.state import Console, Note
from rmq_spark.errors import InvalidOption
from rmq_spark.inspect.fields import messages_text
from rmq_spark.options import typed_value
from rmq_spark.protocol import sending
from rmq_spark.protocol.pages import Position, QueueKind
from rmq_spark.topics.definition import FLAGS, group_text
from rmq_spark.topics.parsing import Option, choice
from rmq_spark.topics.types import TopicType

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

# The fields of a form: each may come several times.
Form = Mapping[str, list[str]]
Change = Callable[[Console, Form, str, str], Note]
ACTION = Option("action", choice(*Action), "What to do with the dead messages")
_ENDED = {
    JobState.STOPPED: "has stopped",
    JobState.FAILED: "has failed",
    JobState.DONE: "is done",
}


def field_of(form: Form, name: str) -> str:
    return (form.get(name) or [""])[0]


def pause(console: Console, form: Form, user: str, topic: str) -> Note:
    console.broker.pause(topic)
    _note(user, "paused topic", topic)
    return Note(f"{topic} is paused: no consumer gets new messages. Sending still works.")


def resume(console: Console, form: Form, user: str, topic: str) -> Note:
    console.broker.resume(topic)
    _note(user, "resumed topic", topic)
    return Note(f"{topic} delivers again.")


def alter(console: Console, form: Form, user: str, topic: str) -> Note:
    # Only what the user has changed: others may have changed the rest since the page was shown.
    changes: dict[str, Any] = {
        name: setting.option.called(name).parse(field_of(form, name))
        for name, setting in FLAGS.items()
        if name in form and form[name] != form.get(f"was_{name}")
    }
    if not changes:
        raise InvalidOption(f"No setting was changed. Accepted: {', '.join(FLAGS)}.")
    console.broker.alter(topic, **changes)
    # In one line, for the log.
    told = ", ".join(f"{name}={' '.join(field_of(form, name).split())}" for name in changes)
    _note(user, f"set {told} of topic", topic)
    return Note(f"{topic}: {told}. Senders and consumers see it from their next batch.")


def send(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = console.queue(topic, None)
    values = _values(queue, form)
    if not values and queue.definition.type is TopicType.FIXED_TIME:
        values = {"fixed_time": queue.now_ms()}
    message = Message(
        field_of(form, "content").encode(),
        slot_basis=field_of(form, "slot_basis") or None,
        key=field_of(form, "key").encode() if queue.definition.keyed else None,
        **values,
    )
    sent = queue.send([message])
    if sent.repeated:
        unique_for = queue.definition.text_of("unique_for")
        told = f"it accepted an equal one within unique_for={unique_for}"
        return Note(f"{topic} did not accept the message: {told}.", failed=True)
    _note(user, "sent a message to topic", topic)
    told = "new" if sent.new else "merged with one that waits"
    return Note(f"One message was sent to {topic}; it is {told}.")


def _values(queue: Queue, form: Form) -> dict[str, Any]:
    return {
        of.keyword: typed_value(of, queue.now_ms).parse(text)
        for of in queue.definition.type.values
        if (text := field_of(form, of.keyword).strip())
    }


def requeue(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = _queue_of(console, form, topic)
    score = _score(queue, form)
    chosen, gone = _chosen(console, form)
    return _done(user, queue, repair.requeue(queue, _names(chosen), score), "requeued", gone)


def purge(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = _queue_of(console, form, topic)
    kind = QueueKind(field_of(form, "queue") or QueueKind.DEAD)
    chosen, gone = _chosen(console, form)
    scores = _by_slot((position.slot, position.score) for position in chosen)
    return _done(user, queue, repair.purge(queue, kind, _names(chosen), scores), "deleted", gone)


def cancel(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = _queue_of(console, form, topic)
    chosen, gone = _chosen(console, form)
    return _done(user, queue, queue.cancel(_names(chosen)), "cancelled", gone)


def move(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = _queue_of(console, form, topic)
    score = _score(queue, form, "moved")
    chosen, gone = _chosen(console, form)
    return _done(user, queue, queue.ask(sending.move, _names(chosen), score), "moved", gone)


def start_job(console: Console, form: Form, user: str, topic: str) -> Note:
    queue = _queue_of(console, form, topic)
    action = Action(ACTION.parse(field_of(form, "action")))
    score = _score(queue, form) if action is Action.REQUEUE else 0
    reason = field_of(form, "reason") or None
    job = console.jobs.start(action, queue, user, reason, score)
    which = "all dead" if reason is None else f"the dead of the reason {reason}"
    _note(user, f"began job {job.number} to {action} {which} of topic", topic)
    return Note(f"Job {job.number} has begun to {action} dead messages of {topic}.")


def stop_job(console: Console, form: Form, user: str, number: str) -> Note:
    job = console.jobs.stop(number)
    _note(user, f"told job {job.number} to stop on topic", job.queue.definition.name)
    return _note_of(job, "has not stopped yet")


def resume_job(console: Console, form: Form, user: str, number: str) -> Note:
    job = console.jobs.resume(number)
    _note(user, f"resumed job {job.number} on topic", job.queue.definition.name)
    return _note_of(job, "goes on")


def _note_of(job: BulkJob, running: str) -> Note:
    told = _ENDED.get(job.state, running)
    return Note(f"Job {job.number} {told} after {messages_text(job.done)}.")


def pause_schedule(console: Console, form: Form, user: str, name: str) -> Note:
    console.broker.pause_schedule(name)
    _note(user, "paused schedule", name)
    return Note(f"The schedule {name} is paused.")


def resume_schedule(console: Console, form: Form, user: str, name: str) -> Note:
    console.broker.resume_schedule(name)
    _note(user, "resumed schedule", name)
    return Note(f"The schedule {name} goes on. What the pause kept back is not sent.")


def remove_schedule(console: Console, form: Form, user: str, name: str) -> Note:
    if not console.broker.unschedule(name):
        return Note(f"There is no schedule {name} any more.", failed=True)
    _note(user, "removed schedule", name)
    return Note(f"The schedule {name} is removed. Messages that it has sent stay.")


def _queue_of(console: Console, form: Form, topic: str) -> Queue:
    return console.queue(topic, field_of(form, "group"))


def _score(queue: Queue, form: Form, done: str = "requeued") -> int:
    value = Message(b"", **_values(queue, form))
    return requeue_score(value, queue.definition, queue.now_ms(), done)


def _chosen(console: Console, form: Form) -> tuple[list[Position], int]:
    """Return where the chosen messages lie, and how many of them are not known any more."""
    named = form.get("ref", [])
    if not named:
        raise InvalidOption("No message is chosen. Tick the messages first.")
    found = [console.references.find(reference) for reference in named]
    known = [position for position in found if position is not None]
    return known, len(found) - len(known)


def _names(chosen: Iterable[Position]) -> dict[int, list[bytes]]:
    return _by_slot((position.slot, position.name) for position in chosen)


def _by_slot(pairs: Iterable[tuple[int, _T]]) -> dict[int, list[_T]]:
    by_slot: dict[int, list[_T]] = {}
    for slot, value in pairs:
        by_slot.setdefault(slot, []).append(value)
    return by_slot


def _done(user: str, queue: Queue, how_many: int, done: str, gone: int) -> Note:
    topic, group = queue.definition.name, group_text(queue.keys.group)
    _note(user, f"{done} {messages_text(how_many)} in group {group} of topic", topic)
    rest = f" {messages_text(gone)} could not be found any more." if gone else ""
    return Note(f"{messages_text(how_many)} {done}.{rest}", failed=not how_many)


def _note(user: str, done: str, subject: str) -> None:
    _log.info("rmq console: %s %s %s", user, done, subject)


# By the address of each.
CHANGES: Mapping[str, Change] = {
    "/topics/{subject}/pause": pause,
    "/topics/{subject}/resume": resume,
    "/topics/{subject}/settings": alter,
    "/topics/{subject}/send": send,
    "/topics/{subject}/requeue": requeue,
    "/topics/{subject}/purge": purge,
    "/topics/{subject}/cancel": cancel,
    "/topics/{subject}/move": move,
    "/topics/{subject}/job": start_job,
    "/jobs/{subject}/stop": stop_job,
    "/jobs/{subject}/resume": resume_job,
    "/schedules/{subject}/pause": pause_schedule,
    "/schedules/{subject}/resume": resume_schedule,
    "/schedules/{subject}/remove": remove_schedule,
}
