"""The manifests of examples/kubernetes: what they say of our own programs, on real ones."""

import json
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rmq_spark.cli.listen import GRACE
from rmq_spark.client import connect
from rmq_spark.local.redis import free_port

from .. import ROOT, kubernetes_types, missing, programs
from ..waiting import wait_until
from .pages import PATH

FILES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
DOCUMENTS = {
    (document["kind"], document["metadata"]["name"]): document
    for file in FILES
    for document in yaml.safe_load_all(file.read_text("utf-8"))
}
BILLING, EXPORTER = (DOCUMENTS["Deployment", name] for name in ("billing", "rmq-metrics"))
SCALED = DOCUMENTS["ScaledObject", "billing"]["spec"]
MONITOR = DOCUMENTS["PodMonitor", "rmq"]["spec"]
(TRIGGER,) = SCALED["triggers"]
QUERY = TRIGGER["metadata"]["query"]
CREATED = re.search(
    r"^# +rmq create (\w+) --type (\w+) --slots (\d+)$",
    (ROOT / "examples/kubernetes/billing.yaml").read_text("utf-8"),
    re.MULTILINE,
)
# Notes each message when it begins, and waits until the test lets all go on.
SHOP = """
import time
from pathlib import Path

def bill(message):
    Path("begun", message.content.decode()).touch()
    while not Path("go").exists():
        time.sleep(0.01)
    with open("done", "a") as done:
        done.write(f"{message.content.decode()} {message.retries_left}\\n")
"""
MESSAGES = [f"order-{number}" for number in range(300)]


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


def container_of(deployment):
    (container,) = pod_of(deployment)["containers"]
    return container


def option(deployment, name):
    (value,) = (
        word.partition("=")[2]
        for word in container_of(deployment)["command"]
        if word.startswith(f"--{name}=")
    )
    return value


@dataclass
class Pod:
    """The program of a container: its process, what it has printed, and its port of metrics."""

    process: subprocess.Popen
    printed: Path
    port: int

    def get(self, path):
        """The status and the text of an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def running(deployment, redis, folder, name="pod"):
    """The command of a manifest, with a free port for its own, killed at the end."""
    container = container_of(deployment)
    port = container["ports"][0]["containerPort"]
    words = [
        word.replace("$(POD_NAME)", name).replace(f"port={port}", "port=0")
        for word in container["command"]
    ]
    assert "--host=0.0.0.0" in words or "--metrics-host=0.0.0.0" in words
    printed = folder / f"printed-{name}"
    with (
        printed.open("w") as output,
        subprocess.Popen(
            words,
            cwd=folder,
            env=programs.environment(PATH=PATH, RMQ_REDIS_URL=redis.url),
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            address = wait_until(
                lambda: re.search(r"http://0\.0\.0\.0:(\d+)/metrics\b", printed.read_text()), name
            )
            yield Pod(process, printed, int(address[1]))
        finally:
            process.kill()


@pytest.fixture
def there(own_redis):
    """A connection to a Redis with the topic, as the head of the manifest creates it."""
    with connect(own_redis.url) as broker:
        broker.create(CREATED[1], CREATED[2], int(CREATED[3]))
        yield broker


@pytest.fixture
def known_messages(there):
    """Seven that are due, of which three are in progress, and five that are not due."""
    orders = there.queue("Orders")
    orders.send(MESSAGES[:7], fixed_time=0)
    orders.send(MESSAGES[7:12], delay="1h")
    with there.consumer("Orders", "clerk") as clerk:
        batch = clerk.poll(3)
        assert len(batch) == 3
        yield batch


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_kubernetes_and_its_operators_accept_each(file):
    kubernetes_types.check(yaml.safe_load_all(file.read_text("utf-8")))


@pytest.mark.parametrize(
    ("kind", "line", "instead"),
    [
        ("Deployment", "terminationGracePeriodSeconds: 90", "gracePeriodSeconds: 90"),
        ("Deployment", "path: /readyz", "route: /readyz"),
        ("ScaledObject", "maxReplicaCount: 8", "maxReplicas: 8"),
        ("ScaledObject", "behavior: currentReplicasIfHigher", "behavior: higher"),
        ("ScaledObject", "threshold: '1000'", "threshold: 1000"),
        ("PodMonitor", "jobLabel: rmq-job", "joblabel: rmq-job"),
    ],
)
def test_they_would_not_accept_a_mistake(kind, line, instead):
    text = yaml.safe_dump(next(each for (of, _), each in DOCUMENTS.items() if of == kind))
    assert line in text
    with pytest.raises(kubernetes_types.Refused):
        kubernetes_types.check([yaml.safe_load(text.replace(line, instead))])


@pytest.mark.parametrize("deployment", [BILLING, EXPORTER])
def test_what_belongs_together_has_the_same_names(deployment):
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert "replicas" not in deployment["spec"]
    (selected,) = MONITOR["selector"]["matchExpressions"]
    assert (selected["key"], selected["operator"]) == (MONITOR["jobLabel"], "Exists")
    assert labels[MONITOR["jobLabel"]] in (ROOT / "docs/operations.md").read_text("utf-8")
    (port,) = container_of(deployment)["ports"]
    (endpoint,) = MONITOR["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    given = "metrics-port" if deployment is BILLING else "port"
    assert int(option(deployment, given)) == port["containerPort"]
    assert container_of(deployment)["envFrom"] == [{"secretRef": {"name": "rmq"}}]
    assert "RMQ_REDIS_URL" not in json.dumps(deployment)


def test_there_are_no_more_workers_than_slots():
    assert SCALED["scaleTargetRef"] == {"name": BILLING["metadata"]["name"]}
    workers = SCALED["maxReplicaCount"] * int(option(BILLING, "workers"))
    assert workers == int(CREATED[3])
    assert container_of(BILLING)["command"][2] == CREATED[1]


def test_a_pod_has_a_minute_longer_than_its_listener_waits():
    grace_ms = GRACE.parse(option(BILLING, "grace"))
    assert pod_of(BILLING)["terminationGracePeriodSeconds"] * 1000 == grace_ms + 60_000


def test_a_pod_answers_its_probes_and_ends_its_work(there, own_redis, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "begun").mkdir()
    orders = there.queue("Orders")
    orders.send(MESSAGES, fixed_time=0)
    workers = int(option(BILLING, "workers"))
    within_s = pod_of(BILLING)["terminationGracePeriodSeconds"]
    container = container_of(BILLING)
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {container["ports"][0]["name"]}
    ready = probes[-1]["path"]

    def begun():
        return {path.name for path in (tmp_path / "begun").iterdir()}

    def done():
        return Counter((tmp_path / "done").read_text().splitlines())

    with running(BILLING, own_redis, tmp_path, "billing-1") as pod:
        wait_until(lambda: len(begun()) == workers, "all workers have a message")
        for probe in probes:
            assert pod.get(probe["path"]) == (200, "ok\n")
        pod.process.send_signal(signal.SIGTERM)
        wait_until(lambda: pod.get(ready)[0] == 503, "it takes no more")
        (tmp_path / "go").touch()
        assert pod.process.wait(within_s) == 0
    first, figures = begun(), orders.figures()
    assert workers <= len(first) < len(MESSAGES)
    assert done() == {f"{name} 16": 1 for name in first}
    assert figures.counters["committed"] == len(first)
    assert (figures.store.due, figures.prepare.count) == (len(MESSAGES) - len(first), 0)
    # What it gave back has no retry less, and comes to another pod at once.
    with running(BILLING, own_redis, tmp_path, "billing-2") as pod:
        wait_until(lambda: orders.figures().counters["committed"] == len(MESSAGES), "the others")
        pod.process.send_signal(signal.SIGTERM)
        assert pod.process.wait(within_s) == 0
    assert done() == {f"{name} 16": 1 for name in MESSAGES}


def test_the_exporter_has_what_the_query_selects(own_redis, known_messages, tmp_path):
    with running(EXPORTER, own_redis, tmp_path) as exporter:
        families = text_string_to_metric_families(exporter.get("/metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        counted = 0
        for name, selector in re.findall(r"(\w+)\{(.*?)\}", QUERY):
            wanted = dict(re.findall(r'(\w+)="(.*?)"', selector))
            (sample,) = (
                sample
                for sample in samples
                if sample.name == name and wanted.items() <= sample.labels.items()
            )
            counted += sample.value
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(60) == 0
    assert counted == 7


def test_prometheus_counts_what_is_due_or_in_work_once(own_redis, known_messages, tmp_path):
    with ExitStack() as exporters, prometheus(tmp_path) as server:
        for name in ("old", "new"):  # while one replaces the other
            server.scrape(exporters.enter_context(running(EXPORTER, own_redis, tmp_path, name)))
        wait_until(lambda: server.value('count(rmq_up{job="rmq"} == 1)') == "2", "both")
        wait_until(lambda: server.value(QUERY) == "7", "seven, not fourteen, and not twelve")
        known_messages.commit()
        wait_until(lambda: server.value(QUERY) == "4", "four")
        with connect(own_redis.url) as broker, broker.consumer("Orders", "other") as other:
            other.poll(9).commit()
        wait_until(lambda: server.value(QUERY) == "0", "no pod is needed")
        exporters.close()
        wait_until(lambda: server.value(QUERY) is None, "no figure, which is not 0")
    assert TRIGGER["metadata"]["ignoreNullValues"] == "false"
    assert SCALED["fallback"]["replicas"] > 0
    assert float(TRIGGER["metadata"]["activationThreshold"]) == 0


class Prometheus:
    """A server that scrapes every second what it is told."""

    def __init__(self, folder, port):
        self._targets = folder / "targets.json"
        self._listed = []
        self._url = f"http://127.0.0.1:{port}"

    def scrape(self, pod):
        self._listed.append(f"127.0.0.1:{pod.port}")
        self._targets.with_suffix(".new").write_text(json.dumps([{"targets": self._listed}]))
        self._targets.with_suffix(".new").rename(self._targets)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except OSError:
            return False

    def value(self, query):
        """The only value of a query, or None for none."""
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{words}") as answer:
            result = json.load(answer)["data"]["result"]
        assert len(result) < 2
        return result[0]["value"][1] if result else None


@contextmanager
def prometheus(folder):
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "rmq",
                "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    executable = missing.found("prometheus", "Prometheus", "apt-get install prometheus")
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen(
            [
                executable,
                "--config.file=prometheus.yml",
                f"--storage.tsdb.path={folder / 'figures'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            server = Prometheus(folder, port)
            wait_until(server.is_ready, "Prometheus")
            yield server
        finally:
            process.kill()
