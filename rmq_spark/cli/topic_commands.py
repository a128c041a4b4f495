"""Commands on topics: list, make, change, show, delete."""

import re
import sys
from typing import Annotated, Any

import typer

from rmq_spark.cli.arguments import Group, Json, Topic, Yes
from rmq_spark.cli.output import age_text, print_json, print_table, say, tell, time_text
from rmq_spark.cli.session import broker_of
from rmq_spark.client.queue import Queue
from rmq_spark.errors import InvalidOption
from rmq_spark.protocol import reading
from rmq_spark.protocol.claims import Figures, QueueFigures
from rmq_spark.topics.definition import (
    DEFAULT_GROUP_TEXT,
    DEFAULT_SLOT_AMOUNT,
    TopicDefinition,
    group_text,
    parse_groups,
)
from rmq_spark.topics.topic_types import TOPIC_TYPES, parse_topic_type

Retries = Annotated[int | None, typer.Option(help="Deliveries after the first, 0 to 16.")]
Backoff = Annotated[str | None, typer.Option(help="none, rocketmq, or durations by commas.")]
_TYPES = ", ".join(TOPIC_TYPES)


def add_to(app: typer.Typer) -> None:
    """Adds these commands."""
    for name, command in (
        ("topics", list_topics),
        ("create", create),
        ("alter", alter),
        ("delete", delete),
        ("pause", pause),
        ("resume", resume),
        ("show", show),
        ("lower-epochs", lower_epochs),
    ):
        app.command(name)(command)


def list_topics(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(help="A regular expression that whole names match.")
    ] = ".*",
    as_json: Json = False,
) -> None:
    """List topics."""
    found = broker_of(context).topics(_expression(pattern).fullmatch)
    told = [definition_json(topic) for topic in found]
    if as_json:
        print_json(told)
    elif told:
        columns = ("topic", "type", "slots", "retries", "backoff", "exclusive", "paused", "groups")
        print_table(columns, (_row(topic) for topic in found))
    else:
        say("There is no topic." if pattern == ".*" else f"No topic matches {pattern}.")
    if not told and pattern != ".*":
        raise typer.Exit(3)


def create(
    context: typer.Context,
    topic: Topic,
    topic_type: Annotated[str, typer.Option("--type", help=f"{_TYPES}.")],
    slots: Annotated[int, typer.Option(help="A power of two to 65536.")] = DEFAULT_SLOT_AMOUNT,
    retries: Retries = None,
    backoff: Backoff = None,
    groups: Annotated[str | None, typer.Option(help="Consumer groups by commas.")] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="One key, one thread: needs ZooKeeper.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a topic. One that is there with this type and number of slots is left as it is."""
    broker = broker_of(context)
    was_there = broker.find(topic) is not None
    settings: dict[str, Any] = _settings(retries, backoff)
    if groups is not None:
        settings["groups"] = parse_groups(groups)
    made = broker.create(
        topic, parse_topic_type(topic_type), slots, **settings, exclusive=exclusive
    )
    text = f"{topic}: {'is there already' if was_there else 'made'}: {_told(made)}"
    tell(as_json, text, made=not was_there, **definition_json(made))


def alter(
    context: typer.Context,
    topic: Topic,
    retries: Retries = None,
    backoff: Backoff = None,
    exclusive: Annotated[
        bool | None, typer.Option("--exclusive/--no-exclusive", help="One key, one thread.")
    ] = None,
    add_group: Annotated[str | None, typer.Option(help="A consumer group to add.")] = None,
    remove_group: Annotated[str | None, typer.Option(help="One to take away.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="With all messages in that group.")] = False,
    as_json: Json = False,
) -> None:
    """Change retries, backoff, exclusiveness or consumer groups of a topic."""
    changes = _settings(retries, backoff)
    if exclusive is not None:
        changes["exclusive"] = exclusive
    if not changes and add_group is None and remove_group is None:
        raise InvalidOption(
            "Nothing is to be changed. Accepted: --retries, --backoff, --exclusive, "
            "--no-exclusive, --add-group, --remove-group."
        )
    broker = broker_of(context)
    if changes:
        broker.alter(topic, **changes)
    if add_group is not None:
        broker.add_group(topic, add_group)
    gone = {}
    if remove_group is not None:
        gone["messages"] = broker.remove_group(topic, remove_group, drop=drop)
    altered = broker.definition(topic)
    lost = f", {gone['messages']:,} messages went with {remove_group}" if gone else ""
    tell(as_json, f"{topic}: {_told(altered)}{lost}", **definition_json(altered), **gone)


def delete(context: typer.Context, topic: Topic, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a topic with everything in it."""
    broker = broker_of(context)
    held = sum(
        broker.queue(topic, group=group).figures().messages
        for group in broker.definition(topic).groups
    )
    confirm(f"Delete topic {topic} with {held:,} messages?", yes)
    broker.delete(topic)
    tell(as_json, f"{topic}: deleted, with {held:,} messages", topic=topic, messages=held)


def pause(context: typer.Context, topic: Topic, as_json: Json = False) -> None:
    """Let no query take messages of a topic; sending goes on."""
    paused = broker_of(context).alter(topic, paused=True)
    text = f"{topic}: paused; queries take nothing of it from their next batch on"
    tell(as_json, text, **definition_json(paused))


def resume(context: typer.Context, topic: Topic, as_json: Json = False) -> None:
    """End a pause."""
    resumed = broker_of(context).alter(topic, paused=False)
    tell(as_json, f"{topic}: resumed", **definition_json(resumed))


def show(context: typer.Context, topic: Topic, as_json: Json = False) -> None:
    """Show a topic: its settings, queues, counters and consumers, group by group."""
    broker = broker_of(context)
    definition = broker.definition(topic)
    groups = [_group_json(broker.queue(topic, group=group)) for group in definition.groups]
    if as_json:
        print_json({**definition_json(definition), "groups": groups})
        return
    say(f"{topic}: {_told(definition)}")
    for group in groups:
        say(f"\ngroup {group['group']}")
        print_table(
            ("queue", "messages", "due", "first"),
            ((q["queue"], q["messages"], q["due"], _first(q)) for q in group["queues"]),
        )
        say("")
        print_table(tuple(group["counters"]), [tuple(group["counters"].values())])
        if group["consumers"]:
            say("")
            print_table(
                ("consumer", "slots", "at work in", "seen"),
                (
                    (c["consumer"], c["slots"], c["atWork"], f"{age_text(c['seenMsAgo'])} ago")
                    for c in group["consumers"]
                ),
            )


def lower_epochs(
    context: typer.Context,
    topic: Topic,
    group: Group = DEFAULT_GROUP_TEXT,
    as_json: Json = False,
) -> None:
    """Let slots of an exclusive topic forget their epoch, after ZooKeeper was replaced.

    The epochs of a new ensemble begin anew, and a slot refuses one lower than its last. To be run
    when no query reads the topic through the old ensemble any more: it would be let in beside the
    new owners, and two would work on one slot.
    """
    lowered = broker_of(context).lower_epochs(topic, group=group)
    nothing = "" if lowered else ": nothing to do, or another topic or Redis is meant"
    text = f"{topic}: {lowered} slots forgot their epoch{nothing}"
    tell(as_json, text, topic=topic, slots=lowered)


def confirm(question: str, yes: bool) -> None:
    """Asks, unless that is answered. Raises InvalidOption where nobody can answer."""
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise InvalidOption(f"{question} Nobody can be asked: stdin is no terminal. Say --yes.")
    typer.confirm(question, abort=True)


def definition_json(topic: TopicDefinition) -> dict[str, Any]:
    """A topic as --json prints it."""
    return {
        "topic": topic.name,
        "topicType": topic.type.name,
        "slotAmount": topic.slot_amount,
        "maxRetries": topic.max_retries,
        "retryBackoffMs": list(topic.retry_backoff_ms),
        "exclusive": topic.exclusive,
        "paused": topic.paused,
        "groups": [group_text(group) for group in topic.groups],
    }


def queues_json(figures: Figures) -> list[dict[str, Any]]:
    """Figures as --json prints them."""
    return [_queue_json(name, queue) for name, queue in figures.queues.items()]


def _queue_json(name: str, queue: QueueFigures) -> dict[str, Any]:
    return {"queue": name, "messages": queue.count, "due": queue.due, "firstMs": queue.oldest_ms}


def _group_json(queue: Queue) -> dict[str, Any]:
    figures = queue.figures()
    return {
        "group": group_text(queue.keys.group),
        "queues": queues_json(figures),
        "counters": figures.counters,
        "consumers": _consumers_json(queue),
    }


def _consumers_json(queue: Queue) -> list[dict[str, Any]]:
    return [
        {
            "consumer": seen.consumer,
            "slots": seen.slots,
            "atWork": seen.at_work,
            "seenMsAgo": seen.ms_ago,
        }
        for seen in queue.ask(reading.consumers, queue.now_ms())
    ]


def _first(queue: dict[str, Any]) -> str:
    """What the first message of a queue waits for, or has."""
    meaning = {"store": "due", "prepare": "lease ends", "retry": "due", "dead": "died"}
    time = time_text(queue["firstMs"])
    return f"{meaning[queue['queue']]} {time}" if time else ""


def _settings(retries: int | None, backoff: str | None) -> dict[str, Any]:
    given = {"max_retries": retries, "retry_backoff": backoff}
    return {name: value for name, value in given.items() if value is not None}


def _row(topic: TopicDefinition) -> tuple[Any, ...]:
    return (
        topic.name,
        topic.type.name,
        topic.slot_amount,
        topic.max_retries,
        _backoff(topic),
        topic.exclusive,
        topic.paused,
        ",".join(map(group_text, topic.groups)),
    )


def _told(topic: TopicDefinition) -> str:
    parts = [
        f"{topic.type}, {topic.slot_amount} slots, {topic.max_retries} retries",
        f"backoff {_backoff(topic)}",
        f"groups {', '.join(map(group_text, topic.groups))}",
        *(["exclusive"] if topic.exclusive else []),
        *(["paused"] if topic.paused else []),
    ]
    return "; ".join(parts)


def _backoff(topic: TopicDefinition) -> str:
    return ",".join(_duration(wait) for wait in topic.retry_backoff_ms) or "none"


def _duration(ms: int) -> str:
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _expression(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidOption(
            f"{pattern!r} is no regular expression ({error}). Accepted: one such as 'Orders.*'."
        ) from None
