"""Logins by a CredentialProvider, whose password changes while programs run."""

import asyncio
import importlib
import sys

import pytest
import redis
from redis.auth.token import SimpleToken
from redis.credentials import CredentialProvider, StreamingCredentialProvider

import rmq_spark
import rmq_spark.aio
from rmq_spark.errors import InvalidOption, ServerRefused
from rmq_spark.local.redis import LocalRedis

DUE = 1000


class Passwords(CredentialProvider):
    """The newest password of the user."""

    def __init__(self):
        self.password = "first"
        self.asked = 0

    def get_credentials(self):
        self.asked += 1
        return "app", self.password


class Tokens(Passwords, StreamingCredentialProvider):
    """The same, and whoever wants to know gets each new one."""

    def __init__(self):
        super().__init__()
        self.listeners = []

    def on_next(self, callback):
        self.listeners.append(callback)

    def on_error(self, callback):
        pass

    def is_streaming(self):
        return True

    def token(self):
        return SimpleToken(self.password, 2**62, 0, {"oid": "app"})


@pytest.fixture(scope="module")
def server():
    with LocalRedis(settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def admin(server):
    with redis.Redis.from_url(server.url) as admin:
        change(admin, "first")
        yield admin
        admin.execute_command("ACL", "DELUSER", "app")


def change(admin, password):
    """Only connections that have logged in go on."""
    admin.execute_command(
        "ACL", "SETUSER", "app", "on", "resetpass", f">{password}", "~*", "&*", "+@all"
    )


def drop_connections(admin):
    for one in admin.client_list():
        if one["user"] == "app":
            admin.client_kill_filter(_id=one["id"])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes a module that every process of this user could import."""

    def installed(text):
        (tmp_path / "shop_login.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "shop_login", raising=False)
        importlib.invalidate_caches()

    return installed


def test_a_new_connection_logs_in_with_the_newest_password(server, admin, request):
    passwords = Passwords()
    with rmq_spark.connect(server.url, credential_provider=passwords) as broker:
        broker.create(request.node.name, "FixedTime", 1)
        queue = broker.queue(request.node.name)
        change(admin, "second")
        queue.send(["old connection"], fixed_time=DUE)
        passwords.password = "second"
        drop_connections(admin)
        queue.send(["new connection"], fixed_time=DUE)
        assert queue.figures().store.count == 2
    assert passwords.asked >= 2


def test_the_wake_ups_of_a_consumer_log_in_the_same_way(server, admin, request):
    with rmq_spark.connect(server.url, credential_provider=Passwords()) as broker:
        broker.create(request.node.name, "FixedTime", 1)
        with broker.consumer(request.node.name, "c") as consumer:
            assert list(consumer.poll()) == []
            broker.queue(request.node.name).send(["m"], fixed_time=DUE)
            batch = consumer.poll(wait="10s")
            assert [message.content for message in batch] == [b"m"]
            batch.commit()


def test_a_token_that_comes_logs_the_kept_connections_in_again(server, admin, request):
    tokens = Tokens()
    with rmq_spark.connect(server.url, credential_provider=tokens) as broker:
        broker.create(request.node.name, "FixedTime", 1)
        before = logins(admin)
        change(admin, "second")
        tokens.password = "second"
        for listener in tokens.listeners:
            listener(tokens.token())
        broker.queue(request.node.name).send(["m"], fixed_time=DUE)
        assert logins(admin) > before


def logins(admin):
    return admin.info("commandstats")["cmdstat_auth"]["calls"]


def test_a_wrong_password_of_a_provider_is_a_failed_login(server, admin):
    passwords = Passwords()
    passwords.password = "s3cret"
    with pytest.raises(ServerRefused) as raised:
        rmq_spark.connect(server.url, credential_provider=passwords)
    assert "s3cret" not in str(raised.value)


def test_with_asyncio_it_is_the_same(server, admin, request):
    async def send(passwords):
        async with await rmq_spark.aio.connect(server.url, credential_provider=passwords) as broker:
            await broker.create(request.node.name, "FixedTime", 1)
            queue = await broker.queue(request.node.name)
            change(admin, "second")
            passwords.password = "second"
            drop_connections(admin)
            return await queue.send(["m"], fixed_time=DUE)

    assert asyncio.run(send(Passwords())).new == 1


# -- the option, for Spark and rmq


def test_the_option_names_a_function_that_is_called_once(server, admin, installed):
    installed(
        "from tests.redis.test_credentials import Passwords\n"
        "made = []\n"
        "def new():\n"
        "    made.append(Passwords())\n"
        "    return made[-1]\n"
    )
    for _ in range(2):
        with rmq_spark.connect(server.url, credentialProvider="shop_login:new") as broker:
            assert broker.find("nowhere") is None
    assert len(importlib.import_module("shop_login").made) == 1


@pytest.mark.parametrize(
    "text", ["", "shop_login", "shop_login:", ":new", "shop login:new", "a:b:c"]
)
def test_a_text_that_names_no_function_is_refused(text):
    with pytest.raises(InvalidOption, match=r"credentialProvider=.*Accepted: module:function"):
        rmq_spark.connect("redis://127.0.0.1:1/0", credentialProvider=text)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nowhere_to_be_found:new", "ModuleNotFoundError"),
        ("shop_login:other", "AttributeError"),
        ("shop_login:fails", "ValueError"),
        ("shop_login:text", "returned a str"),
    ],
)
def test_a_function_that_gives_no_provider_is_refused(installed, function, why):
    installed("def fails():\n    raise ValueError('s3cret')\n\ndef text():\n    return 's3cret'\n")
    with pytest.raises(InvalidOption) as raised:
        rmq_spark.connect("redis://127.0.0.1:1/0", credentialProvider=function)
    assert f"credentialProvider='{function}'" in str(raised.value)
    assert why in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("redis://127.0.0.1:1/0", {"password": "s3cret"}),
        ("redis://127.0.0.1:1/0", {"username": "app"}),
        ("redis://:s3cret@127.0.0.1:1/0", {}),
    ],
)
def test_a_second_login_beside_it_is_refused(url, more):
    with pytest.raises(InvalidOption, match="another user or password") as raised:
        rmq_spark.connect(url, credential_provider=Passwords(), **more)
    assert "s3cret" not in str(raised.value)


def test_tasks_of_spark_log_in_by_the_function(spark, server, admin, request, tmp_path):
    module = tmp_path / "shop_spark_login.py"
    module.write_text(
        "from redis.credentials import UsernamePasswordCredentialProvider\n"
        "def new():\n"
        "    return UsernamePasswordCredentialProvider('app', 'first')\n"
    )
    spark.sparkContext.addPyFile(str(module))
    options = {
        "redis.url": server.url,
        "redis.credentialProvider": "shop_spark_login:new",
        "topic": request.node.name,
        "topicType": "FixedTime",
        "fixedTime": str(DUE),
    }
    rows = spark.range(100).selectExpr("cast(id AS string) content").repartition(2)
    rows.write.format("rmq").options(**options).mode("append").save()
    with rmq_spark.connect(server.url) as broker:
        assert broker.queue(request.node.name).figures().store.count == 100
