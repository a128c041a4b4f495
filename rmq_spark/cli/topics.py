"""Commands on topics: create, topics, show, alter, pause, resume, delete, lower-epochs, top."""

import sys
import time
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from itertools import count, repeat, starmap
from typing import Annotated, Any

import typer
from rich.live import Live

from rmq_spark.cli.arguments import Group, Json, Topic, Yes, option_help, parsed
from rmq_spark.cli.output import (
    confirm,
    print_json,
    print_line,
    print_list,
    print_remark,
    print_result,
    print_table,
    table_of,
)
from rmq_spark.cli.session import Ended, broker_of, ended_by_signals, flags
from rmq_spark.client.broker import Broker
from rmq_spark.client.hints import check_agrees, command_line, queue_command
from rmq_spark.client.queue import DEFINITION_AGE_S, overview_of
from rmq_spark.client.schedules import schedules
from rmq_spark.errors import InvalidOption
from rmq_spark.inspect.fields import (
    age_text,
    count_text,
    definition_json,
    group_json,
    messages_text,
    row_json,
    warnings_of,
)
from rmq_spark.inspect.figures import Rate, Rates, Row, look
from rmq_spark.options import OF_SETTINGS, SLOT_AMOUNT, TOPIC_PATTERN, TOPIC_TYPE
from rmq_spark.process import NOTHING_FOUND
from rmq_spark.protocol.claims import STATES
from rmq_spark.protocol.pages import QueueKind
from rmq_spark.topics.definition import (
    DEFAULT_GROUP_TEXT,
    DEFAULT_SLOT_AMOUNT,
    DROP,
    FLAGS,
    KEEP_LAST,
    LASTING,
    SLOT,
    TopicDefinition,
    group_text,
    parse_group,
)
from rmq_spark.topics.parsing import Option, duration
from rmq_spark.topics.settings import Setting

_COLUMNS = (
    *("topic", "type", "slots", "retries", "backoff", "exclusive", "paused", "groups"),
    *("keyed", "on expiry", "dead retention"),
)
OneGroup = Annotated[str | None, typer.Option("--group", help="Only this consumer group.")]
INTERVAL = Option("--interval", duration(100), "The time between two updates", default="2s")
HOLD = Option("DELAY", duration(0), "For how long")
CONSUMERS_SHOWN = 50
COLUMNS = ("topic", "group", "in/s", "out/s", *STATES, "oldest", "consumers", "notes")


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of all settings, in place of its parameter ``settings``."""
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        parameters += (
            [
                Parameter(keyword, Parameter.KEYWORD_ONLY, default=None, annotation=_flag(setting))
                for keyword, setting in FLAGS.items()
            ]
            if parameter.name == "settings"
            else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
        )

    def run(**given: Any) -> None:
        texts = {keyword: given.pop(keyword) for keyword in FLAGS}
        settings = {
            keyword: FLAGS[keyword].option.called(FLAGS[keyword].flag).parse(text)
            for keyword, text in texts.items()
            if text is not None
        }
        command(**given, settings=settings)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _flag(setting: Setting) -> Any:
    help_text = option_help(setting.option).replace(" of a new topic", "")
    return Annotated[str | None, typer.Option(setting.flag, help=help_text)]


def list_topics(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(help="A regular expression that must match whole names.")
    ] = ".*",
    as_json: Json = False,
) -> None:
    """List topics."""
    broker = broker_of(context)
    matches = TOPIC_PATTERN.called("PATTERN").parse(pattern).fullmatch
    found = broker.topics(matches, lambda _, error: print_remark(str(error)))
    if pattern != ".*":
        none = f"No topic matches {pattern}."
    elif broker.key_prefix:
        none = f"There are no topics with the key prefix {broker.key_prefix}."
    else:
        none = "There are no topics without a key prefix (--key-prefix)."
    print_list(as_json, list(map(definition_json, found)), _COLUMNS, map(_row, found), none)
    if not found and pattern != ".*":
        raise typer.Exit(NOTHING_FOUND)


@_with_settings
def create(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The name of the new topic.", show_default=False)],
    topic_type: Annotated[
        str | None, typer.Option("--type", help=f"{option_help(TOPIC_TYPE)} Required.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(help=f"{option_help(SLOT_AMOUNT)} Without it: {DEFAULT_SLOT_AMOUNT}."),
    ] = None,
    *,
    settings: dict[str, Any],
    groups: Annotated[str | None, typer.Option(help=option_help(OF_SETTINGS["groups"]))] = None,
    keyed: Annotated[
        bool,
        typer.Option(
            "--keyed", help="Messages have a key, by which they merge, beside their content."
        ),
    ] = False,
    payload: Annotated[
        str | None,
        typer.Option(
            help="With --keyed: which content a waiting message keeps when its key is sent again. "
            f"Accepted: {OF_SETTINGS['payload'].parser.accepted_plain}. Without it: {KEEP_LAST}."
        ),
    ] = None,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive", help="Only one consumer works on a slot at a time. Needs ZooKeeper."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a topic.

    A topic that exists with this type, and with this number of slots if you give one, stays as it
    is. You cannot change the type, the number of slots, --keyed or --payload later; change other
    settings with rmq alter.
    """
    if topic_type is None:
        raise InvalidOption(f"--type is missing. Accepted: {TOPIC_TYPE.parser.accepted_plain}.")
    of_type = TOPIC_TYPE.called("--type").parse(topic_type)
    amount = parsed(SLOT_AMOUNT.called("--slots"), None if slots is None else str(slots))
    if keyed:
        settings["keyed"] = True
    if payload is not None:
        settings["payload"] = OF_SETTINGS["payload"].called("--payload").parse(payload)
        if not keyed:
            raise InvalidOption(
                f"--payload={payload!r} needs --keyed: only the messages of a keyed topic have a "
                "payload beside their key."
            )
    broker = broker_of(context)
    found = broker.find(topic)
    if found is not None:
        remedy = (
            f"To use it as it is, leave out rmq create: {command_line(broker, 'show', topic)} "
            "shows it. For another one, choose another name, or delete this one with all its "
            f"messages: {command_line(broker, 'delete', topic)}"
        )
        lasting = {name: settings[name] for name in LASTING if name in settings}
        check_agrees(found, of_type, amount, lasting, remedy)
    if groups is not None:
        settings["groups"] = OF_SETTINGS["groups"].called("--groups").parse(groups)
    made = broker.create(topic, of_type, amount, **settings, exclusive=exclusive)
    text = f"{topic}: {'exists already' if found else 'created'}: {_summary(made)}"
    print_result(as_json, text, created=not found, **definition_json(made))


@_with_settings
def alter(
    context: typer.Context,
    topic: Topic,
    *,
    settings: dict[str, Any],
    exclusive: Annotated[
        bool | None,
        typer.Option(
            "--exclusive/--no-exclusive", help="Only one consumer works on a slot at a time."
        ),
    ] = None,
    add_group: Annotated[str | None, typer.Option(help="Add this consumer group.")] = None,
    remove_group: Annotated[str | None, typer.Option(help="Remove this consumer group.")] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove the group even if it holds messages.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change the settings of a topic, such as retries or groups.

    The type, the number of slots, and whether the topic is keyed are fixed forever.
    """
    changes = settings if exclusive is None else {**settings, "exclusive": exclusive}
    if not changes and add_group is None and remove_group is None:
        raise InvalidOption(
            "No change is given. Accepted: at least one of "
            f"{', '.join(setting.flag for setting in FLAGS.values())}, --exclusive, "
            "--no-exclusive, --add-group, --remove-group."
        )
    broker = broker_of(context)
    if changes:
        broker.alter(topic, **changes)
    if add_group is not None:
        with flags(group="--add-group"):
            broker.add_group(topic, add_group)
    gone: dict[str, Any] = {}
    if remove_group is not None:
        with flags(group="--remove-group"):
            before = broker.definition(topic)
            removed = broker.remove_group(topic, remove_group, drop=drop)
            gone = {"removedGroup": remove_group, "messages": removed}
            time.sleep(1.5 * DEFINITION_AGE_S)  # until all senders know
            broker.delete_left(before, parse_group(remove_group))
    altered = broker.definition(topic)
    lost = f"; removed group {remove_group} with {messages_text(gone['messages'])}" if gone else ""
    print_result(as_json, f"{topic}: {_summary(altered)}{lost}", **definition_json(altered), **gone)


def delete(context: typer.Context, topic: Topic, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a topic with all its messages and its schedules."""
    broker = broker_of(context)
    before = broker.definition(topic)
    held = sum(broker.queue(topic, group=group).figures().messages for group in before.groups)
    found = schedules(broker, lambda *_: None)  # what cannot be read, the deletion logs
    names = [one.name for one in found if one.topic == topic]
    scheduled = f" and {count_text(len(names), 'schedule')} ({', '.join(names)})" if names else ""
    confirm(f"Delete topic {topic} with {messages_text(held)}{scheduled}?", yes)
    broker.delete(topic)
    told = f"{topic}: deleted, with {messages_text(held)}{scheduled}"
    print_result(as_json, told, topic=topic, messages=held, schedules=names)


def pause(
    context: typer.Context, topic: Topic, group: OneGroup = None, as_json: Json = False
) -> None:
    """Stop delivery from a topic. Sending still works."""
    paused = broker_of(context).pause(topic, group=group)
    where = "" if paused.paused else f" for the group {group}"
    told = f"{topic}: paused{where}; no consumer{where and ' of it'} gets new messages"
    print_result(as_json, told, **definition_json(paused))


def resume(
    context: typer.Context, topic: Topic, group: OneGroup = None, as_json: Json = False
) -> None:
    """Resume delivery from a paused topic."""
    resumed = broker_of(context).resume(topic, group=group)
    of_group = "" if group is None else f" for the group {group}"
    if group is None and resumed.paused_groups:
        of_group = f", but not for {resumed.text_of('paused_groups')}: each was paused by --group"
    print_result(as_json, f"{topic}: resumed{of_group}", **definition_json(resumed))


def hold(
    context: typer.Context,
    topic: Topic,
    delay: Annotated[str, typer.Argument(help="For how long, such as 30s.", show_default=False)],
    group: OneGroup = None,
    as_json: Json = False,
) -> None:
    """Stop delivery from a topic for a while. rmq resume ends that."""
    delay_ms = HOLD.parse(delay)
    broker_of(context).hold(topic, delay_ms, group=group)
    who = "no consumer" if group is None else f"no consumer of the group {group}"
    text = f"{topic}: held; {who} gets new messages for {delay}"
    print_result(as_json, text, topic=topic, group=group, delayMs=delay_ms)


def show(context: typer.Context, topic: Topic, as_json: Json = False) -> None:
    """Show settings, queues, counters and consumers of a topic."""
    broker = broker_of(context)
    definition = broker.definition(topic)
    queues = [broker.queue(topic, group=group) for group in definition.groups]
    rows = [Row(queue, *overview_of(queue)) for queue in queues]
    groups = list(map(group_json, rows))
    if as_json:
        print_json({**definition_json(definition), "groups": groups})
        return
    print_line(f"{topic}: {_summary(definition)}")
    for row, group in zip(rows, groups, strict=True):
        print_line("")
        held = [f"held until {group['heldUntil']}"] if group["heldUntil"] else []
        print_line(", ".join([f"group {row.group}", *held, *row.full_to().values()]))
        expire = queue_command(row.queue, "expire")
        print_table(
            ("queue", "messages", "due", "first"),
            ((q["queue"], q["messages"], q["due"], _first(q, expire)) for q in group["queues"]),
        )
        print_line("")
        print_table(tuple(group["counters"]), [tuple(group["counters"].values())])
        if group["consumers"]:
            print_line("")
            print_table(
                ("consumer", "slots", "holds slots", "seen"),
                (
                    (c["consumer"], c["slots"], c["heldSlots"], f"{age_text(c['seenMsAgo'])} ago")
                    for c in group["consumers"][:CONSUMERS_SHOWN]
                ),
            )
        if (more := len(group["consumers"]) - CONSUMERS_SHOWN) > 0:
            print_line(f"{count_text(more, 'consumer')} more, seen longer ago: --json lists all.")


def lower_epochs(
    context: typer.Context, topic: Topic, group: Group = DEFAULT_GROUP_TEXT, as_json: Json = False
) -> None:
    """Reset epochs after you replace ZooKeeper (exclusive topics).

    The epochs of a new ensemble start from the beginning, and a slot refuses an epoch that is lower
    than its last. First stop every query that reads the topic through the old
    ensemble. Otherwise two queries can work on one slot.
    """
    lowered = broker_of(context).lower_epochs(topic, group=group)
    nothing = "" if lowered else "; check the name of the topic and the address of Redis"
    text = f"{topic}: epoch reset in {count_text(lowered, 'slot')}{nothing}"
    print_result(as_json, text, topic=topic, slots=lowered)


def _first(queue: dict[str, Any], expire: str) -> str:
    """Describe the first message in a queue. expire: the command that gives back ended claims."""
    for name, meaning in (("dueTime", "due"), ("leaseEnds", "lease ends"), ("diedAt", "died")):
        if name in queue:
            return f"{meaning} {queue[name]}"
    ended = queue["queue"] == QueueKind.PREPARE and queue["due"]
    return f"lease has ended; the next consumer or {expire} gives it back" if ended else ""


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
        topic.keyed,
        topic.on_expiry,
        topic.text_of("dead_retention"),
    )


# The settings that a summary tells in words of its own. Others are shown if they are not ``none``.
_IN_WORDS = {
    *("max_retries", "retry_backoff", "retry_jitter", "on_expiry", "dead_retention"),
    *("rate", "burst", "rate_by"),
}


def _limit_text(topic: TopicDefinition) -> str:
    each = " in each slot" if topic.rate_by == SLOT else ""
    return f"at most {topic.rate}, {topic.most_at_once} at once{each}"


def _summary(topic: TopicDefinition) -> str:
    kept = topic.text_of("dead_retention")
    parts = [
        f"{topic.type}, {count_text(topic.slot_amount, 'slot')}, "
        f"{count_text(topic.max_retries, 'retry', 'retries')}",
        f"backoff {_backoff(topic)}",
        f"groups {', '.join(map(group_text, topic.groups))}",
        *([f"keyed, keeps the {topic.payload} content"] if topic.keyed else []),
        *([] if topic.on_expiry == DROP else ["expired messages go to the dead queue"]),
        *([f"keeps the dead for {kept}"] if topic.dead_retention_ms else []),
        *([_limit_text(topic)] if topic.rate else []),
        *(
            f"{name} {topic.text_of(name)}"
            for name in FLAGS
            if name not in _IN_WORDS and topic.text_of(name) != "none"
        ),
        *(["exclusive"] if topic.exclusive else []),
        *(["paused"] if topic.paused else []),
        *([f"paused groups {topic.text_of('paused_groups')}"] if topic.paused_groups else []),
    ]
    return "; ".join(parts)


def _backoff(topic: TopicDefinition) -> str:
    waits = topic.text_of("retry_backoff").replace(" ", "")
    return f"{waits} (jitter {topic.text_of('retry_jitter')})" if topic.retry_jitter else waits


def top(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics; without any, all.", show_default=False)
    ] = None,
    interval: Annotated[str, typer.Option(help=option_help(INTERVAL))] = str(INTERVAL.default),
    times: Annotated[
        int | None,
        typer.Option(
            "--times", "-n", min=1, help="Update this many times, instead of until Ctrl-C."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch rates, queues and consumers of topics until Ctrl-C.

    If stdout is not a terminal, rmq prints one table after another. With --json, each look is one
    line.
    """
    broker = broker_of(context)
    for name in names or ():
        broker.definition(name)  # fails at once for a topic that does not exist
    with ended_by_signals() as ended:
        looks = _looks(broker, names, INTERVAL.parse(interval) / 1000, times, ended)
        if as_json or not sys.stdout.isatty():
            for found in looks:
                if as_json:
                    print_json([row_json(*one) for one in found])
                else:
                    print_table(COLUMNS, starmap(_cells, found))
                sys.stdout.flush()
        else:
            with Live(auto_refresh=False, screen=times is None) as live:
                for found in looks:
                    live.update(table_of(COLUMNS, starmap(_cells, found)), refresh=True)
    if ended.is_set():
        raise typer.Exit(ended.exit_code)


def _looks(
    broker: Broker, names: list[str] | None, pause_s: float, times: int | None, ended: Ended
) -> Iterator[list[tuple[Row, Rate | None]]]:
    """Look again and again until ``ended``. The first look shows no rates."""
    rates = Rates()
    for number in count() if times is None else range(times):
        if number:
            ended.sleep(pause_s)
        if ended.is_set():
            return
        rows = look(broker, names)
        found = rates.note_all(rows)
        yield list(zip(rows, found if number else repeat(None), strict=False))


def _cells(row: Row, rate: Rate | None) -> tuple[Any, ...]:
    exclusive = row.definition.exclusive  # then consumers share the slots
    return (
        row.topic,
        row.group,
        rate and round(rate.came),
        rate and round(rate.went),
        *row.states.values(),
        age_text(row.oldest_age_ms),
        ", ".join(
            seen.consumer[:12] + (f" ({count_text(seen.slots, 'slot')})" if exclusive else "")
            for seen in row.consumers
        ),
        ", ".join(warnings_of(row)),
    )
