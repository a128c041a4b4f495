"""Errors of redis-py and of the scripts: the RmqError of each, and whether it may pass."""

import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors
from redis.sentinel import MasterNotFoundError

from rmq_spark import errors
from rmq_spark.options import REDIS
from rmq_spark.redis.connection import ConnectionOptions
from rmq_spark.topics.reasons import printable

_GRANT = "Grant it"
PERMIT = f"{_GRANT} the commands in docs/security.md with +command."
_PERMIT_KEYS = (
    "Give the prefix of its keys (--key-prefix, key_prefix or keyPrefix), or grant it these keys "
    "with ~prefix* (docs/security.md). A user with selectors may also lack the command."
)
_UNTRUSTED = (
    "Use the host name of the certificate in redis.url, and set redis.sslCaCerts to the file of "
    "the authority that signed it."
)
_MOVE_KEY = "Rename that key, or set another key prefix or database for the queue."
_NEW_CHECKPOINT = "Give the query a new checkpointLocation."

# By the code of a script's error: the error here, and the remedy.
_OF_SCRIPTS: dict[str, tuple[type[errors.RmqError], str]] = {
    "RMQ_FENCED": (
        errors.Fenced,
        "A newer run of the same query, consumer or listener has taken over. If two queries share "
        "a checkpoint, or two services a name, give one of them its own.",
    ),
    "RMQ_ALREADYCOMMITTED": (errors.AlreadyCommitted, ""),
    "RMQ_LEASELOST": (
        errors.LeaseLost,
        "Start the query again: its next run continues without these messages. If this happens "
        "often, raise visibilityTimeout.",
    ),
    "RMQ_EXCLUSIVE": (
        errors.ExclusiveSlot,
        "Read it with zookeeper.hosts, or set the topic's exclusive to False.",
    ),
    "RMQ_WRONGTYPE": (errors.WrongKeyType, _MOVE_KEY),
    "RMQ_OTHERTOPIC": (errors.CheckpointRefused, _NEW_CHECKPOINT),
    "RMQ_RESTORED": (errors.CheckpointRefused, _NEW_CHECKPOINT),
    "RMQ_STAGELOST": (
        errors.StageLost,
        "Start the query again: it stages the whole batch again. Messages already published may "
        "then be sent twice.",
    ),
}

# The texts of Redis 6.2 and 7.0, and of Redis 7.2, later ones and Valkey.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script:")
# Of a command and of a script; the last one of Redis 7.2, later ones and Valkey.
_DENIED_KEYS = ("access one of the keys", "access at least one of the keys", "access a key")
_DENIED_COMMAND = re.compile(r"run the '([\w|]+)' command")
_PERMANENT = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
_TEMPORARY = (
    redis_errors.AskError,  # its subclass MovedError, too
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.BusyLoadingError,
    redis_errors.TryAgainError,
    redis_errors.ReadOnlyError,
    redis_errors.ClusterDownError,
    redis_errors.MasterDownError,
    redis_errors.NoScriptError,  # forgotten again before the script that was loaded could run
)
# Errors of a master that becomes a replica during WAIT, or has too few replicas to write.
_UNBLOCKED, _NOREPLICAS = "UNBLOCKED", "NOREPLICAS"
# A server that cannot save, as on a full disk, takes no writes until it can.
_NOT_SAVING = "MISCONF "
# Redis before 7.0 begins a script before it refuses the first write, with an error in an error.
_READONLY_IN_SCRIPT, _NOREPLICAS_IN_SCRIPT = ": -READONLY ", ": -NOREPLICAS "
_NOT_SAVING_IN_SCRIPT = ": -MISCONF "
_IN_SCRIPT = (_READONLY_IN_SCRIPT, _NOREPLICAS_IN_SCRIPT, _NOT_SAVING_IN_SCRIPT)
# The answer to a command of more than ten parts before a login; then Redis closes the connection.
_TOO_LONG_WITHOUT_LOGIN = "Protocol error: unauthenticated"
# The answer to a new connection; then Redis closes it.
_TOO_MANY_CLIENTS = "max number of clients reached"
# Somebody's script runs for longer than lua-time-limit.
_BUSY = "BUSY "
# Texts of redis-py in a class that is not a RedisError: for a server that is not a cluster, and for
# a cluster that is being formed or rebuilt.
_NO_CLUSTER = "Cluster mode is not enabled"
_TEMPORARY_IN_CLUSTER = ("slots are not covered", "could not agree on")


@dataclass(frozen=True)
class _Failed:
    error: Exception
    text: str
    what: str
    options: ConnectionOptions
    tries: int
    seconds: float

    @property
    def code(self) -> str:
        return self.text.split(" ", 1)[0]

    @property
    def words(self) -> dict[str, str]:
        certfile = f"{self.options.prefix}sslCertfile"
        tls = f" with TLS; it may require a client certificate ({certfile})"
        certificate = _certificate_error(self.error)
        return {
            "at": f"Redis at {node_of(self.error) or self.options.address}",
            "what": self.what,
            "text": self.text,
            "sentence": self.text.rstrip("."),
            "kind": type(self.error).__name__,
            "tried": "once" if self.tries == 1 else f"{self.tries} times in {self.seconds:.1f} s",
            "permit": self._permit,
            "login": self.options.login_source,
            "named": self._named,
            "tls": tls if self.options.address.startswith("rediss") else "",
            "certificate": certificate.verify_message.removesuffix(".") if certificate else "",
        }

    @property
    def _named(self) -> str:
        prefix = self.options.prefix
        if self.options.sentinels is not None:
            return f"{prefix}sentinels and {prefix}sentinelMaster are"
        return f"{prefix}url or RMQ_REDIS_URL is"

    @property
    def _permit(self) -> str:
        if is_of_keys(self.text):
            return _PERMIT_KEYS
        command = denied_command(self.text)
        return PERMIT if command is None else permit([command])


@dataclass(frozen=True)
class _Row:
    """A kind of failure: its test, the error to raise, and the error's text."""

    matches: Callable[[_Failed], object]
    error: type[errors.RmqError]
    says: str


def _is(*kinds: type[Exception]) -> Callable[[_Failed], bool]:
    return lambda failed: isinstance(failed.error, kinds)


def _has(*texts: str) -> Callable[[_Failed], bool]:
    return lambda failed: any(text in failed.text for text in texts)


# The first matching row decides.
_TABLE = (
    _Row(
        _is(redis_errors.AuthenticationError, redis_errors.AuthenticationWrongNumberOfArgsError),
        errors.ServerRefused,
        "{at} refused the user or password. Check {login}.",
    ),
    _Row(
        lambda failed: (
            isinstance(failed.error, redis_errors.NoPermissionError) or failed.code == "NOPERM"
        ),
        errors.ServerRefused,
        "{at} does not permit this user to do this: {sentence}. {permit}",
    ),
    _Row(
        _has(*_DENIED_IN_SCRIPT),
        errors.ServerRefused,
        "{at} does not permit this user a command or key of {what}: {sentence}. {permit}",
    ),
    _Row(
        lambda failed: (
            isinstance(failed.error, redis_errors.AuthorizationError)
            or "NOAUTH" in failed.text
            or _TOO_LONG_WITHOUT_LOGIN in failed.text
        ),
        errors.ServerRefused,
        "{at} requires a password. Set redis.password.",
    ),
    _Row(
        _has("DB index is out of range", "invalid DB index"),
        errors.ServerRefused,
        "{at} does not have this database: {text}. Check the number at the end of redis.url.",
    ),
    _Row(
        lambda failed: (
            isinstance(failed.error, redis_errors.OutOfMemoryError)
            or failed.code == "OOM"
            or "OOM command" in failed.text
        ),
        errors.ServerFull,
        "{at} has reached maxmemory and stores nothing more. Consume messages or raise maxmemory.",
    ),
    _Row(
        _has(_NO_CLUSTER),
        errors.ServerUnsuitable,
        "redis.cluster=true, but {at} is not a cluster. Leave redis.cluster out.",
    ),
    _Row(
        lambda failed: _certificate_error(failed.error),
        errors.ServerUntrusted,
        "{at} has a certificate that is not trusted: {certificate}. " + _UNTRUSTED,
    ),
    _Row(
        lambda failed: failed.text.startswith(_UNBLOCKED),
        errors.NotReplicated,
        "{at} is failing over: it has written, but replicas may lack it ({text}). rmq-spark tried "
        "{tried}. Check its replicas.",
    ),
    _Row(
        lambda failed: failed.text.startswith(_NOREPLICAS) or _NOREPLICAS_IN_SCRIPT in failed.text,
        errors.ServerUnavailable,
        "{at} takes no writes while it has fewer replicas than its min-replicas-to-write ({text}). "
        "rmq-spark tried {tried}. Check its replicas.",
    ),
    _Row(
        lambda failed: failed.options.sentinels and isinstance(failed.error, MasterNotFoundError),
        errors.ServerUnavailable,
        "{at} was not found: {text}. rmq-spark tried {tried}. Check redis.sentinelMaster "
        "and redis.sentinels.",
    ),
    _Row(
        lambda failed: is_of_replica(failed.error),
        errors.ServerUnavailable,
        "{at} is a replica and takes no writes. rmq-spark tried {tried}. Check that "
        "redis.url names the master, or set redis.sentinels or redis.cluster.",
    ),
    _Row(
        lambda failed: failed.text.startswith(_NOT_SAVING) or _NOT_SAVING_IN_SCRIPT in failed.text,
        errors.ServerUnavailable,
        "{at} cannot save its data, so it takes no writes ({sentence}). rmq-spark tried {tried}. "
        "Check the free space and the permissions of its folder; its log says more.",
    ),
    _Row(
        _has(_TOO_MANY_CLIENTS),
        errors.ServerUnavailable,
        "{at} has as many connections as it accepts. rmq-spark tried {tried}. Close some, or raise "
        "maxclients.",
    ),
    _Row(
        lambda failed: is_temporary(failed.error),
        errors.ServerUnavailable,
        "{at} cannot be reached ({kind}: {text}). rmq-spark tried {tried}. Check that {named} "
        "right and that the server is running{tls}. To start a Redis for a trial, run `rmq local`.",
    ),
    _Row(
        lambda failed: failed.text.lower().startswith("unknown command"),
        errors.ServerUnsuitable,
        "{at}: {text}. Use Redis 6.2 or later, or Valkey, without renamed commands.",
    ),
    _Row(
        _has("WRONGTYPE"),
        errors.WrongKeyType,
        "{at}: {what} found a key of the queue with another type. " + _MOVE_KEY,
    ),
    _Row(
        _has("invalid bulk length"),
        errors.ScriptFailed,
        "{at}: {what} sent a text that is longer than the server's proto-max-bulk-len. Raise "
        "that, or send shorter messages.",
    ),
    _Row(lambda failed: True, errors.ScriptFailed, "{at}: {what} failed: {text}"),
)


def typed_error(
    error: Exception, what: str, options: ConnectionOptions, tries: int = 1, seconds: float = 0.0
) -> errors.RmqError:
    """Explain an error of redis-py. what: the call. tries, seconds: how often, for how long."""
    # For an unknown command the server quotes the arguments, and AUTH's is a password.
    text = printable(str(error).partition(", with args beginning with:")[0])
    if isinstance(error, MasterNotFoundError):  # redis-py quotes the login
        text = (
            "the Sentinels do not watch a master of that name, have not yet replaced one that is "
            "down, or none of them answers"
        )
    failed = _Failed(error, text, what, options, tries, seconds)
    if failed.code in _OF_SCRIPTS:
        kind, remedy = _OF_SCRIPTS[failed.code]
        return kind(f"{text.split(' ', 1)[1]}. {remedy}".strip())
    row = next(row for row in _TABLE if row.matches(failed))
    says = row.says.replace(REDIS, options.prefix)
    typed = row.error(says.format(**failed.words))
    if isinstance(typed, errors.ServerError):
        typed.node = node_of(error)
    return typed


def of_node(error: Exception, node: str | None) -> Exception:
    """Note with redis-py's error which cluster node has answered so; None: there is one server."""
    if node is not None:
        error.rmq_node = node  # type: ignore[attr-defined]
    return error


def node_of(error: Exception) -> str | None:
    node: str | None = getattr(error, "rmq_node", None)
    return node


def permit(commands: Iterable[str]) -> str:
    """Write what to grant a user who may not run some commands, for errors."""
    rights = " ".join(f"+{command.lower()}" for command in sorted(commands))
    return f"{_GRANT} {rights} (docs/security.md)."


def is_of_script(reply: Any) -> bool:
    """Return whether a reply is the error of a script whose user is denied a command or key."""
    return isinstance(reply, Exception) and any(text in str(reply) for text in _DENIED_IN_SCRIPT)


def is_of_keys(denial: str) -> bool:
    """Return whether a user is denied a key, not a command. denial: the server's or our text."""
    return any(text in denial for text in _DENIED_KEYS)


def without_permit(denial: str) -> str:
    """Return a denial without the sentence that says what to grant. denial: our text."""
    return denial.partition(f" {_GRANT} ")[0].rstrip(".")


def denied_command(denial: str) -> str | None:
    """Return the command that a denial names, such as memory|usage. denial: as for is_of_keys."""
    found = _DENIED_COMMAND.search(denial)
    return found[1] if found else None


def is_of_replica(reply: Any) -> bool:
    """Return whether a reply is the error of a write that a replica has refused."""
    if isinstance(reply, redis_errors.ReadOnlyError):
        return True
    return isinstance(reply, Exception) and _READONLY_IN_SCRIPT in str(reply)


def is_temporary(error: Exception) -> bool:
    if isinstance(error, redis_errors.RedisClusterException):
        return isinstance(error, redis_errors.SlotNotCoveredError) or any(
            text in str(error) for text in _TEMPORARY_IN_CLUSTER
        )
    if isinstance(error, _PERMANENT) or _certificate_error(error) is not None:
        return False
    text = str(error)
    return (
        isinstance(error, _TEMPORARY)
        or text.startswith((_UNBLOCKED, _NOREPLICAS, _BUSY, _NOT_SAVING))
        or any(refused in text for refused in _IN_SCRIPT)
    )


def root_of(error: Exception) -> Exception:
    """Return the error of the cluster node asked last, or an error that has no such cause."""
    while isinstance(error, redis_errors.RedisClusterException):
        if _NO_CLUSTER in str(error) and isinstance(
            error.__context__, redis_errors.NoPermissionError
        ):
            return error.__context__
        if not isinstance(error.__cause__, Exception):
            break
        error = error.__cause__
    return error


def _certificate_error(error: Exception) -> ssl.SSLCertVerificationError | None:
    """Return the reason why the server's certificate was refused; None for other errors."""
    behind = error.__context__
    return behind if isinstance(behind, ssl.SSLCertVerificationError) else None
