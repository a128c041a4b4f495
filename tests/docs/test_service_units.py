"""The service units of docs/services.md start a listener that a signal ends well."""

import os
import re
import shlex
import signal
import subprocess

import pytest

from rmq_spark.client import connect

from .. import ROOT
from ..waiting import wait_until
from .pages import PATH

PAGE = (ROOT / "docs/services.md").read_text(encoding="utf-8")
LINES = re.findall(r"^(?:ExecStart=\S*/|CMD exec )(rmq listen .*)$", PAGE, re.MULTILINE)


def test_there_is_a_unit_and_an_image():
    assert len(LINES) == 2


@pytest.mark.parametrize("line", LINES)
def test_it_listens_until_it_is_stopped(line, own_redis, tmp_path):
    (tmp_path / "shop.py").write_text("def bill(message): pass\n")
    with connect(own_redis.url) as broker:
        broker.create("Orders", "FixedTime", 4)
    host = line.replace("%H", "host").replace("$HOSTNAME", "host").replace("9312", "0")
    log = tmp_path / "log"
    variables = {**os.environ, "RMQ_REDIS_URL": own_redis.url, "PATH": PATH}
    with (
        log.open("w") as stderr,
        subprocess.Popen(shlex.split(host), cwd=tmp_path, env=variables, stderr=stderr) as process,
    ):
        try:
            wait_until(lambda: "listening to Orders as billing-host" in log.read_text(), "it")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
