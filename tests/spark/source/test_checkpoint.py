"""The offset that Spark keeps, and checkpoints that must not be gone on from."""

import json
import shutil
import uuid
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from rmq_spark.errors import CheckpointRefused, InvalidOption
from rmq_spark.spark.options import Subscription
from rmq_spark.spark.source.offset import Offset

from ..driving import chained_text, contents, names, send_due

GOLDEN = Path(__file__).parent / "golden" / "offset_v1.json"
REMEDY = "restored from a backup or copied, or .*asyncProgress.*Use a new checkpointLocation"


def test_the_offset_is_written_as_it_was_in_version_1():
    offset = Offset("3f2504e04f8941d39a0c0305e82c3301", 41, "Orders")
    assert json.dumps(offset.to_dict()) == GOLDEN.read_text().strip()


def test_an_offset_of_version_1_is_read():
    fields = json.loads(GOLDEN.read_text())
    assert Offset.from_dict(fields, Subscription(names=("Orders",))) == Offset(
        "3f2504e04f8941d39a0c0305e82c3301", 41, "Orders"
    )


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_an_unknown_version_is_refused_with_the_remedy(version):
    fields = json.loads(GOLDEN.read_text()) | {"version": version}
    with pytest.raises(CheckpointRefused, match=r"has version .* reads version 1. Use the version"):
        Offset.from_dict(fields, Subscription(names=("Orders",)))


@pytest.mark.parametrize("of_another", [12, "12", None, {"logOffset": 0}])
def test_the_offset_of_another_source_is_refused(of_another):
    with pytest.raises(CheckpointRefused, match="belongs to another source"):
        Offset.from_dict(of_another, Subscription(names=("Orders",)))


def test_the_checkpoint_of_another_topic_is_refused_naming_both(rmq):
    queue, other = rmq.due(1), rmq.due(1)
    with rmq.by_hand(queue) as run:
        end, _ = run.next(run.initial())
    with rmq.by_hand(other) as wrong:
        with pytest.raises(CheckpointRefused, match="belongs to the topic") as refused:
            wrong.plan(end)
        with pytest.raises(CheckpointRefused, match="Give each its own checkpointLocation"):
            wrong.partitions(end, end | {"seq": 2})
    assert queue.definition.name in str(refused.value)
    assert other.definition.name in str(refused.value)
    assert other.figures().store.count == 1


def test_a_checkpoint_behind_what_is_committed_is_refused(rmq):
    queue = rmq.due(9, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as run:
        first, _ = run.next(run.initial())
        second, _ = run.next(first)
        third, _ = run.next(second)  # commits the second
        with run.again() as restored, pytest.raises(CheckpointRefused, match=REMEDY):
            restored.plan(first)
        with run.again() as restored, pytest.raises(CheckpointRefused, match=REMEDY):
            restored.partitions(first, second)
        # The refused ones took nothing over.
        assert len(run.batch(second, third)) == 3


def test_a_checkpoint_that_has_not_seen_the_batch_in_work_is_refused(rmq):
    """An intact one would have come through partitions; its next plan would commit that batch."""
    queue = rmq.due(9, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as run:
        first, _ = run.next(run.initial())
        run.next(first)
        with run.again() as restored, pytest.raises(CheckpointRefused, match=REMEDY):
            restored.plan(first)
    figures = queue.figures()
    assert (figures.store.count, figures.prepare.count) == (3, 3)


def test_a_copied_checkpoint_takes_over_and_the_original_commits_nothing_more(rmq):
    queue = rmq.due(6, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as original, original.again() as copy:
        start = original.initial()
        end, rows = original.next(start)
        assert contents(copy.batch(start, end)) == contents(rows)
        with pytest.raises(Exception, match=r"superseded.*If two queries share a checkpoint"):
            original.plan(end)
        assert queue.figures().prepare.count == 3
        _, rest = copy.next(end)
    assert sorted(contents(rows + rest)) == names(6)


def test_a_copy_of_a_finished_checkpoint_whose_original_went_on_is_refused(rmq):
    queue = rmq.due(3, slots=1)
    with rmq.by_hand(queue) as original:
        end, _ = original.next(original.initial())
        original.plan(end)  # committed
    send_due(queue, range(3, 6))
    with original.again() as on:
        later, _ = on.next(end)
        on.plan(later)
    with original.again() as copy, pytest.raises(CheckpointRefused, match=REMEDY):
        copy.plan(end)


def test_a_checkpoint_that_is_intact_goes_on_after_a_run_that_read_nothing(rmq):
    queue = rmq.due(3, slots=1)
    with rmq.by_hand(queue) as run:
        end, _ = run.next(run.initial())
        assert run.plan(end) == end
    with run.again() as second:
        assert second.plan(end) == end
    send_due(queue, range(3, 5))
    with run.again() as third:
        _, rows = third.next(end)
    assert contents(rows) == ["m3", "m4"]


@pytest.mark.long
def test_async_progress_tracking_is_refused_and_leaves_a_usable_checkpoint(spark, rmq):
    queue = rmq.due(9, slots=1)

    def start(folder, **options):
        writer = rmq.read(spark, queue, maxRecordsPerTrigger=3).writeStream.format("noop")
        return writer.options(checkpointLocation=str(folder), **options).start()

    query = start(rmq.folder / "async", asyncProgressTrackingEnabled="true")
    with pytest.raises(StreamingQueryException) as refused:
        query.awaitTermination(60)
    assert "asyncProgressTrackingEnabled=true is not accepted" in chained_text(refused.value)
    # Spark 4.3 does not end such a query properly, and so starts it only in another driver. Under
    # another id it starts it here.
    without_sum = shutil.ignore_patterns(".metadata.crc")
    copy = shutil.copytree(rmq.folder / "async", rmq.folder / "copy", ignore=without_sum)
    (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    query = start(copy)
    query.processAllAvailable()
    query.stop()
    counters = queue.figures().counters
    assert (counters["claimed"], counters["rolledBack"]) == (9, 0)


def test_a_batch_whose_plan_spark_has_not_noted_is_not_handed_out(rmq):
    queue = rmq.due(9, slots=1)
    with rmq.by_hand(queue, maxRecordsPerTrigger=3) as run:
        first, _ = run.next(run.initial())
        second = run.reader.latestOffset(first, run.reader.getDefaultReadLimit())
        with pytest.raises(InvalidOption, match="Remove the option"):
            run.partitions(first, second)
        run.reader.commit(first)
        assert len(run.batch(first, second)) == 3
