"""What the errors of redis-py and of our scripts mean: which pass, and what each is called here."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from redis import exceptions as failures
from redis.sentinel import MasterNotFoundError

from rmq_spark import errors
from rmq_spark.transport.connection import ConnectionOptions

PERMIT = "Give it all of docs/security.md: +command, and ~keyPrefix* for keys."
_UNTRUSTED = (
    "Name the server in redis.url as its certificate does, and the file of the authority that "
    "signed it in redis.sslCaCerts."
)
_MOVE_KEY = "Move that key away, or give the queue a keyPrefix or database of its own."
_NEW_CHECKPOINT = "Give the query a new checkpointLocation."

# What our scripts answer: the code, the error, the remedy.
_OF_SCRIPTS: dict[str, tuple[type[errors.RmqError], str]] = {
    "RMQ_SUPERSEDED": (
        errors.Superseded,
        "A newer start of the same query or consumer has taken over. If two queries share a "
        "checkpoint, give one of them its own.",
    ),
    "RMQ_SETTLED": (errors.Settled, ""),
    "RMQ_LOST": (
        errors.Lost,
        "Start the query again: its next run goes on without them. A longer visibilityTimeout "
        "makes it rarer.",
    ),
    "RMQ_EXCLUSIVE": (
        errors.ExclusiveSlot,
        "Read it with zookeeper.hosts, or switch the topic's exclusive off.",
    ),
    "RMQ_WRONGTYPE": (errors.WrongKeyType, _MOVE_KEY),
    "RMQ_OTHERTOPIC": (errors.CheckpointRefused, _NEW_CHECKPOINT),
    "RMQ_RESTORED": (errors.CheckpointRefused, _NEW_CHECKPOINT),
    "RMQ_STAGELOST": (
        errors.StageLost,
        "Start the query again: it stages the whole batch anew. Messages of it that are published "
        "already may come twice.",
    ),
}

# What Redis 6.2 and 7.0 say; what Redis 7.2 and later and Valkey say.
_DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script:")
_LASTING = (failures.AuthenticationError, failures.AuthorizationError)
_PASSING = (
    failures.AskError,  # MOVED, too
    failures.ConnectionError,
    failures.TimeoutError,
    failures.BusyLoadingError,
    failures.TryAgainError,
    failures.ReadOnlyError,
    failures.ClusterDownError,
    failures.MasterDownError,
)
# What a master says that becomes a replica while WAIT waits, or that has too few replicas to write.
_FAILING_OVER = ("UNBLOCKED", "NOREPLICAS")
# What redis-py says, in a class that is no RedisError, of a server that is no cluster, and of
# clusters that are being formed or rebuilt.
_NO_CLUSTER = "Cluster mode is not enabled"
_PASSING_IN_CLUSTER = ("slots are not covered", "could not agree on")


@dataclass(frozen=True)
class _Failed:
    """An error, and where it came from."""

    error: Exception
    text: str
    what: str
    options: ConnectionOptions
    patience_s: float

    @property
    def code(self) -> str:
        return self.text.split(" ", 1)[0]

    @property
    def words(self) -> dict[str, str]:
        """The words that the table's sentences leave room for."""
        tls = " with TLS, maybe for clients with a certificate only (redis.sslCertfile)"
        certificate = _certificate_error(self.error)
        return {
            "at": f"Redis at {self.options.address}",
            "what": self.what,
            "text": self.text,
            "sentence": self.text.rstrip("."),
            "kind": type(self.error).__name__,
            "patience": f"{self.patience_s:g} s",
            "tls": tls if self.options.address.startswith("rediss") else "",
            "certificate": certificate.verify_message.removesuffix(".") if certificate else "",
        }


@dataclass(frozen=True)
class _Row:
    """One kind of failure: how to tell it, which error it is, and what that says."""

    matches: Callable[[_Failed], object]
    error: type[errors.RmqError]
    says: str


def _is(*kinds: type[Exception]) -> Callable[[_Failed], bool]:
    return lambda failed: isinstance(failed.error, kinds)


def _has(*texts: str) -> Callable[[_Failed], bool]:
    return lambda failed: any(text in failed.text for text in texts)


# The first row that matches counts.
_TABLE = (
    _Row(
        _is(failures.AuthenticationError, failures.AuthenticationWrongNumberOfArgsError),
        errors.ServerRefused,
        "{at} refused the user or password. Check redis.username and redis.password.",
    ),
    _Row(
        lambda failed: (
            isinstance(failed.error, failures.NoPermissionError) or failed.code == "NOPERM"
        ),
        errors.ServerRefused,
        "{at} does not permit this user: {text}. " + PERMIT,
    ),
    _Row(
        _has(*_DENIED_IN_SCRIPT),
        errors.ServerRefused,
        "{at} does not permit this user a command or key of {what}: {sentence}. " + PERMIT,
    ),
    _Row(
        lambda failed: (
            "NOAUTH" in failed.text or isinstance(failed.error, failures.AuthorizationError)
        ),
        errors.ServerRefused,
        "{at} asks for a password. Set redis.password.",
    ),
    _Row(
        _has("DB index is out of range", "invalid DB index"),
        errors.ServerRefused,
        "{at} has no such database: {text}. Check redis.url.",
    ),
    _Row(
        lambda failed: (
            isinstance(failed.error, failures.OutOfMemoryError)
            or failed.code == "OOM"
            or "OOM command" in failed.text
        ),
        errors.ServerFull,
        "{at} has reached maxmemory: nothing more can be stored until messages are consumed or the "
        "limit is raised.",
    ),
    _Row(
        _has(_NO_CLUSTER),
        errors.ServerUnsuitable,
        "redis.cluster=true, but {at} is no cluster. Leave redis.cluster out.",
    ),
    _Row(
        lambda failed: _certificate_error(failed.error),
        errors.ServerUntrusted,
        "{at} shows a certificate that is not trusted: {certificate}. " + _UNTRUSTED,
    ),
    _Row(
        lambda failed: failed.text.startswith(_FAILING_OVER),
        errors.NotReplicated,
        "{at} is being failed over, or has fewer replicas than it needs to write ({text}); it was "
        "tried for {patience}.",
    ),
    _Row(
        lambda failed: failed.options.sentinels and isinstance(failed.error, MasterNotFoundError),
        errors.ServerUnavailable,
        "{at} is not known: {text}. Check redis.sentinelMaster and redis.sentinels; they were "
        "asked for {patience}.",
    ),
    _Row(
        lambda failed: passes(failed.error),
        errors.ServerUnavailable,
        "{at} cannot be reached ({kind}: {text}). Check that the server runs{tls} and that "
        "redis.url or RMQ_REDIS_URL names it; `rmq local` starts a Redis for trials. It was tried "
        "for {patience}.",
    ),
    _Row(
        lambda failed: failed.text.lower().startswith("unknown command"),
        errors.ServerUnsuitable,
        "{at}: {text}. Needed: Redis 6.2 or later, or Valkey, with no command renamed.",
    ),
    _Row(
        _has("WRONGTYPE"),
        errors.WrongKeyType,
        "{at}: {what} found a key of another type. " + _MOVE_KEY,
    ),
    _Row(lambda failed: True, errors.ScriptFailed, "{at}: {what} failed: {text}"),
)


def typed_error(
    error: Exception, what: str, options: ConnectionOptions, patience_s: float
) -> errors.RmqError:
    """Return the error that says what failed.

    what: the script or command that was called. patience_s: for how long it was tried.
    """
    # Of a command that it does not know the server quotes the arguments: AUTH's is a password.
    text = str(error).partition(", with args beginning with:")[0]
    if isinstance(error, MasterNotFoundError):  # redis-py quotes what it asked with
        text = "the Sentinels know of no such master, or none of them answers"
    failed = _Failed(error, text, what, options, patience_s)
    if failed.code in _OF_SCRIPTS:
        kind, remedy = _OF_SCRIPTS[failed.code]
        return kind(f"{text.split(' ', 1)[1]}. {remedy}".strip())
    row = next(row for row in _TABLE if row.matches(failed))
    return row.error(row.says.format(**failed.words))


def passes(error: Exception) -> bool:
    """Return whether an error may go away by itself."""
    if isinstance(error, failures.RedisClusterException):
        return isinstance(error, failures.SlotNotCoveredError) or any(
            text in str(error) for text in _PASSING_IN_CLUSTER
        )
    if isinstance(error, _LASTING) or _certificate_error(error) is not None:
        return False
    return isinstance(error, _PASSING) or str(error).startswith(_FAILING_OVER)


def root_of(error: Exception) -> Exception:
    """Return what was the matter with the node of a cluster that was asked last."""
    while isinstance(error, failures.RedisClusterException):
        if _NO_CLUSTER in str(error) and isinstance(error.__context__, failures.NoPermissionError):
            return error.__context__
        if not isinstance(error.__cause__, Exception):
            break
        error = error.__cause__
    return error


def _certificate_error(error: Exception) -> ssl.SSLCertVerificationError | None:
    """Return why the server's certificate was refused, if redis-py stumbled over that."""
    behind = error.__context__
    return behind if isinstance(behind, ssl.SSLCertVerificationError) else None
