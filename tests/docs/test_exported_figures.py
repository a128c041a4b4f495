"""The reference names the figures that are exported to Prometheus, other pages no others."""

import json
import re
import subprocess
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CollectorRegistry

from rmq_spark.client.queue import overview_of
from rmq_spark.client.receiving.timings import Timings
from rmq_spark.inspect.prometheus import FunctionCollector, ListenerCollector, QueueCollector
from rmq_spark.inspect.queries import QueryMetrics
from rmq_spark.spark.source.backlog import backlog_figures

from .. import missing
from ..texts.page import PAGES


@pytest.fixture
def there(broker):
    """All families by name, once a message of a topic has died and a query has read it."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(lambda: broker))
    broker.create("Orders", "FixedTime", 1, max_retries=0, max_messages=9)
    broker.schedule("hourly", "Orders", "m", every="1h")
    broker.queue("Orders").send(["m"], fixed_time=0)
    with broker.consumer("Orders", "clerk") as clerk:
        clerk.poll().rollback()
    reported = backlog_figures(overview_of(broker.queue("Orders"))) | {"slotsOwned": 1}
    offset = json.dumps({"topic": "Orders", **reported})
    source = SimpleNamespace(latestOffset=offset, numInputRows=1)
    query = {"id": "one", "runId": "first"}
    progress = SimpleNamespace(**query, sources=[source], numInputRows=1, batchDuration=1)
    listener = broker.listen("Orders", "billing", print)
    registry.register(ListenerCollector(listener))
    counts = dict.fromkeys(("succeeded", "failed", "snoozed", "left_alone"), 0)
    of_function = SimpleNamespace(name="print", timings=lambda: {"Orders": Timings()}, **counts)
    registry.register(FunctionCollector("one", of_function))
    metrics = QueryMetrics(registry)
    metrics.onQueryStarted(SimpleNamespace(**query, name="one"))
    metrics.onQueryProgress(SimpleNamespace(progress=progress))
    return {family.name: family for family in registry.collect()}


def labels_of(family):
    """Without that of a histogram's buckets."""
    return [label for label in family.samples[-1].labels if label != "le"]


def names_in(text):
    found = set(re.findall(r"\brmq_[a-z_]+", text)) - {"rmq_spark", "rmq_"}
    return {re.sub(r"_(total|bucket)$", "", name) for name in found}


def test_the_reference_has_their_types_and_labels(there):
    table = PAGES["docs/reference.md"].by_name("Figures for Prometheus")
    assert {name: tuple(cells[:2]) for name, cells in table.items()} == {
        name: (family.type, ", ".join(labels_of(family))) for name, family in there.items()
    }


def test_the_page_of_operations_names_no_other(there):
    assert names_in(PAGES["docs/operations.md"].text) <= set(there)


def alert_rules():
    blocks = [block for page in PAGES.values() for block in page.blocks_of("yaml")]
    alerts = [yaml.safe_load(block.text) for block in blocks if "alert:" in block.text]
    return [group for alert in alerts for group in alert["groups"]]


def test_alert_rules_ask_for_them(there):
    rules = [rule for group in alert_rules() for rule in group["rules"]]
    assert rules
    for rule in rules:
        assert {"alert", "expr"} <= rule.keys()
        assert names_in(rule["expr"]) or rule["expr"].startswith("up{")  # Prometheus' own figure
        assert names_in(rule["expr"]) <= set(there)


def fires(name, at, labels=None):
    """A line of promtool's tests: whether an alert fires at a time, for some labels."""
    alerts = [] if labels is None else [{"exp_labels": labels}]
    return {"eval_time": at, "alertname": name, "exp_alerts": alerts}


def test_an_alert_fires_for_a_topic_that_is_gone_while_redis_answers(tmp_path):
    """Failed before: rmq_up stayed 1, and all figures of the topic were gone."""
    series = {
        'rmq_up{job="rmq",instance="a"}': "1x60",
        'rmq_up{job="rmq",instance="b"}': "1x60",
        'rmq_consumers{topic="Kept",group="default",instance="a"}': "0x60",
        # Failed before: that of the other team, in another Redis or under another prefix, hid it.
        'rmq_consumers{topic="Jobs",group="default",instance="a"}': "1x20 stale",
        'rmq_consumers{topic="Jobs",group="default",instance="b"}': "1x60",
    }
    of_outage = {
        'rmq_up{job="rmq",instance="a"}': "1x20 0x40",
        'rmq_consumers{topic="Kept",group="default",instance="a"}': "1x20 stale",
    }
    calls = 'topic="Calls",group="default",instance="a"'
    hanging = {
        f"rmq_due_messages{{{calls}}}": "0x60",
        f'rmq_messages{{{calls},queue="prepare"}}': "1x60",
        f"rmq_consumers{{{calls}}}": "1x60",
        f"rmq_paused{{{calls}}}": "0x60",
        f"rmq_held_seconds{{{calls}}}": "0x60",
        f"rmq_oldest_due_seconds{{{calls}}}": "0x60",  # as always of a Priority topic
        f'rmq_events_total{{{calls},event="committed"}}': "0+1x10 10x50",
    }
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": one, "values": text} for one, text in given.items()],
            "alert_rule_test": lines,
        }
        for given, lines in (
            (
                series,
                [
                    fires("RmqTopicGone", "20m"),
                    fires("RmqTopicGone", "23m", {"topic": "Jobs", "instance": "a"}),
                    fires("RmqTopicGone", "40m"),
                ],
            ),
            (
                of_outage,
                [
                    fires("RmqTopicGone", "25m"),
                    fires("RmqDown", "25m", {"job": "rmq", "instance": "a"}),
                ],
            ),
            (
                hanging,
                [
                    fires("RmqNothingDone", "20m"),
                    fires(
                        "RmqNothingDone",
                        "32m",
                        {"topic": "Calls", "group": "default", "instance": "a"},
                    ),
                ],
            ),
        )
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": alert_rules()}))
    asked = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(asked))
    promtool = missing.found("promtool", "Prometheus", "apt-get install prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
