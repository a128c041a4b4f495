"""Errors of Kafka in one line, with the remedy and without secrets."""

import re
from collections.abc import Mapping

from rmq_spark.jobs.program import JobFailed

PREFIX = "kafka."
_SECRET = re.compile(r"password|secret|jaas|credential|token|ssl\.key|\.key$|\.config$", re.I)
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")
# What to do, by the names of errors in the Java client and in librdkafka.
_TOO_LARGE = (
    "Raise kafka.max.request.size (with --exactly-once kafka.message.max.bytes) and the topic's "
    'max.message.bytes, or refuse large messages with --select "IF(octet_length(content) > 900000, '
    "raise_error('too large'), content) AS value\", which puts them into the exceptions."
)
_SILENT = "Check that the brokers run and that kafka.bootstrap.servers names them."
_FENCED = (
    "Another export runs with the same checkpoint: give each its own. Or the batch took longer "
    "than kafka.transaction.timeout.ms: raise it, or lower maxRecordsPerTrigger."
)
_REMEDIES = {
    "RecordTooLargeException": _TOO_LARGE,
    "MSG_SIZE_TOO_LARGE": _TOO_LARGE,
    "TimeoutException": _SILENT,
    "_ALL_BROKERS_DOWN": _SILENT,
    "_MSG_TIMED_OUT": _SILENT,
    "_RESOLVE": _SILENT,
    "_TIMED_OUT": _SILENT,
    "_TRANSPORT": _SILENT,
    "_FENCED": _FENCED,
    "INVALID_PRODUCER_EPOCH": _FENCED,
    "PRODUCER_FENCED": _FENCED,
}


def failure(name: str, text: str, options: Mapping[str, str]) -> JobFailed:
    """Return the error of a job for an error of Kafka.

    name, text: those of Kafka's error. options: those of the format, of which secrets are hidden.
    """
    said = text.rstrip(".")
    remedy = _REMEDIES.get(name, "")
    told = (
        f"Kafka at {address_of(options)} failed: {hidden(said, options)} ({name}).",
        remedy,
        "No message is lost: start the job again.",
    )
    return JobFailed(" ".join(filter(None, told)))


def no_such_topic(topic: str, options: Mapping[str, str]) -> JobFailed:
    """Return the error for a topic that neither exists nor is created by the brokers."""
    return JobFailed(
        f"Kafka at {address_of(options)} has no topic {topic}, and does not create it. Create it, "
        f"such as with kafka-topics.sh --create --topic {topic}, or correct its name. No message "
        "is lost: start the job again."
    )


def unfinished_transaction(group: str, options: Mapping[str, str]) -> JobFailed:
    """Return the error for an offset of a group that an open transaction holds back."""
    return JobFailed(
        f"Kafka at {address_of(options)} has a transaction that does not end, and keeps back the "
        f"offset of the group {group} until then. If no other program uses this group, a broker "
        "that was killed has lost the end of the transaction: abort it with kafka-transactions.sh "
        "on all partitions (docs/jobs.md, A transaction without an end). No message is lost: then "
        "start the job again."
    )


def settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Kafka client: of each option kafka.NAME, NAME and its value."""
    return {
        name[len(PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }


def address_of(options: Mapping[str, str]) -> str:
    """Return the brokers that the options name; empty if they name none."""
    return settings_of(options).get("bootstrap.servers", "")


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Return a text in one line, in which *** stands for the values of secret options.

    Quoted parts of such a value, such as the password in sasl.jaas.config, are hidden as well.
    """
    secrets = {value for name, value in options.items() if _SECRET.search(name)}
    secrets |= {part for value in secrets for part in _QUOTED.findall(value)}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())
