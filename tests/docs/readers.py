"""What the reader of a page has by then, what is looked at afterwards, and what cannot run here."""

from contextlib import contextmanager

from rmq_spark.local.zookeeper import LocalEnsemble

from .. import kafka_broker, postgres

SESSION = """
from pyspark.sql import SparkSession
import rmq_spark
spark = SparkSession.builder.getOrCreate()
broker = rmq_spark.connect()
"""
# By page, Python that goes before its first block.
BEFORE = {
    # A topic in which something died.
    "docs/operations.md": f"""{SESSION}
broker.create("Orders", "FixedTime", 4)
queue = broker.queue("Orders")
for number in range(8):
    died_at = 1 if number < 4 else 4 * 10**12
    queue.server.client.zadd(queue.keys.dead(number % 4), {{f"{{number}} eur": died_at}})
""",
    # The reader's Python imports from the folder that it stands in.
    "docs/traces.md": "import sys\nsys.path.insert(0, '')",
    "docs/services.md": "import os\nimport sys\nsys.path.insert(0, '')",
    # Work to share, and a function that does it.
    "docs/ownership.md": f"""{SESSION}
import os
import time
broker.create("Orders", "FixedTime", 4)
broker.queue("Orders").send([f"order {{number}}" for number in range(40)], fixed_time=1)
def bill(message):
    assert message.content.startswith("order ")
""",
}
# By page, Python that goes behind its last block.
AFTER = {
    "docs/operations.md": """
store, dead = queue.figures().store, queue.figures().dead
print("stored", store.count, "dead", dead.count)
from rmq_spark.protocol.pages import QueueKind
pages = (page for slot in queue.slots for page in queue.pages(QueueKind.STORE, slot))
print(sorted(content for page in pages for content in page.contents))
""",
    "docs/ownership.md": """
started = [start("one"), start("two")]
while broker.queue("Orders").figures().counters["committed"] < 40:
    assert all(query.isActive for query in started), [query.exception() for query in started]
    time.sleep(0.2)
for query in started:
    query.stop()
print("exclusive", broker.definition("Orders").exclusive)
""",
    # What the page promises of Spark's log level; a failed query prints them otherwise.
    "docs/tutorial.md": """
with open("../printed") as printed:
    assert "\\tat org.apache.spark" not in printed.read()
""",
    "docs/services.md": """
from fastapi.testclient import TestClient
broker.alter("Orders", exclusive=False)
before = orders.figures().store.count
with TestClient(app) as client:
    answer = client.post("/orders", json={"id": "e1"})
    print(answer.status_code, answer.json(), orders.figures().store.count - before)
""",
}
# By page, lines that it must have printed, whole.
PRINTED = {
    # Those that died lately came back.
    "docs/operations.md": [
        "stored 4 dead 4",
        str([f"{n} eur".encode() for n in range(4, 8)]),
    ],
    "docs/ownership.md": ["exclusive True"],
    "docs/services.md": ["202 {'accepted': 'e1'} 1"],
}
# By page, beginnings of lines that it shows and that come out otherwise each time.
VARYING = {
    # Where the function was typed; which Redis it was.
    "docs/scaling.md": ["Nothing was measured on your Redis:"],
    "docs/tutorial.md": ["rmq: batch 0: topic", "rmq_spark.errors.UnknownTopic: The topic Leters"],
}
# By page, what stands on it and cannot be so here: addresses, ports, folders.
INSTEAD = {
    # The page shows what is worked out where no Redis answers.
    "docs/scaling.md": {"rmq size": "rmq --redis-url redis://127.0.0.1:1/0 size"},
    "docs/operations.md": {"start_http_server(9311)": "start_http_server(0)"},
    "docs/jobs.md": {
        "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0": (
            "spark.jars=$KAFKA_JARS"
        ),
        "127.0.0.1:9092": "$KAFKA",
    },
    "docs/services.md": {'"zk1:2181,zk2:2181,zk3:2181"': 'os.environ["ZOOKEEPER"]'},
    "docs/ownership.md": {
        '"zk1:2181,zk2:2181,zk3:2181"': 'os.environ["ZOOKEEPER"]',
        'f"/checkpoints/{name}"': 'f"checkpoints/{name}"',
    },
}
# Pages whose reader stands in a clone.
IN_A_CLONE = ("README.md", "docs/install.md", "docs/jobs.md", "docs/recipes.md")
# Lines of sh blocks that do not run here, and the test that runs what they do.
ELSEWHERE = {
    "python3 -m venv ~/rmq-venv": (
        "tests/packaging/test_wheel.py::test_without_spark_it_sends_consumes_and_listens"
    ),
    ". ~/rmq-venv/bin/activate": (
        "tests/packaging/test_wheel.py::test_without_spark_it_sends_consumes_and_listens"
    ),
    "pip install '.[spark,cli,local]'": (
        "tests/packaging/test_wheel.py::test_without_spark_it_sends_consumes_and_listens"
    ),
    "pip install '.[spark,cli]'": (
        "tests/packaging/test_wheel.py::test_without_spark_it_sends_consumes_and_listens"
    ),
    # Variables that the page has when it runs, with an address of its own.
    "export RMQ_JDBC_URL=jdbc:postgresql://127.0.0.1:5432/shop RMQ_JDBC_USER=shop "
    "RMQ_JDBC_PASSWORD=...": "tests/docs/test_examples.py::test_the_blocks_of_a_page_run",
    "export PGHOST=127.0.0.1 PGPORT=5432 PGDATABASE=shop PGUSER=shop PGPASSWORD=...": (
        "tests/docs/test_examples.py::test_the_blocks_of_a_page_run"
    ),
    "rmq local": ("tests/cli/test_program_commands.py::test_a_local_redis_lives_until_it_is_ended"),
    "pip install .": (
        "tests/packaging/test_wheel.py::test_without_spark_it_sends_consumes_and_listens"
    ),
    "spark-submit --py-files rmq_spark.zip job.py": (
        "tests/packaging/test_zip.py::test_as_py_files_it_sends_and_reads_after_register"
    ),
    # Each starts a Spark of its own, beside those of its kind that run.
    "rmq job export --topic Flights --once --checkpoint flights-checkpoint --to "
    "iceberg --table lake.flights --target-option type=sql --target-option uri=sqlite:///lake.db "
    '--target-option "warehouse=file://$PWD/lake" --select "content AS tail, dueTime"': (
        "tests/ports/test_iceberg_target.py::test_a_topic_goes_into_a_table_which_is_made"
    ),
    "rmq job export --topic Flights --once --checkpoint flights-to-rocketmq --to "
    "rocketmq --target-option endpoints=127.0.0.1:8081 --target-option topic=flights": (
        "tests/ports/test_rocketmq_target.py::test_a_message_has_a_name_for_ever_that_a_replay_repeats"
    ),
    "rmq job requeue_dead --topic Invoices --where \"content LIKE '%order%'\" --dry-run": (
        "tests/jobs/test_topic_jobs.py::test_dead_messages_are_chosen_by_why_and_at_whose_they_died"
    ),
    "rmq job report --to parquet --path figures": (
        "tests/jobs/test_topic_jobs.py::test_reports_as_files_are_one_table"
    ),
}


@contextmanager
def zookeeper():
    with LocalEnsemble() as ensemble:
        yield {"ZOOKEEPER": ensemble.hosts}


@contextmanager
def database():
    postgres.driver()
    with postgres.Postgres() as server:
        yield server.variables


@contextmanager
def kafka():
    jars = kafka_broker.connector()
    with kafka_broker.KafkaBroker() as broker:
        yield {"KAFKA": broker.address, "KAFKA_JARS": jars}


@contextmanager
def database_and_kafka():
    with database() as of_database, kafka() as of_kafka:
        yield {**of_database, **of_kafka}


# By page, a context manager that starts servers beside Redis and gives variables that name them.
SERVERS = {
    "docs/jobs.md": database_and_kafka,
    "docs/outbox.md": database,
    "docs/ownership.md": zookeeper,
    "docs/services.md": zookeeper,
}
