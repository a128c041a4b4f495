"""What users change through the console, and who may."""

import logging
import re
import threading
import time

import pytest

from rmq_spark.client import Message
from rmq_spark.console import jobs
from rmq_spark.console.jobs import Action, JobState
from rmq_spark.topics.definition import FLAGS
from rmq_spark.topics.keys import schedules_key

ORDERS = "/topics/Orders"


@pytest.fixture
def orders(site):
    site.broker.create("Orders", "FixedTime", 4, max_retries=0)
    return site.broker.queue("Orders")


def refs(site, queue="store", topic="Orders"):
    return [one["ref"] for one in site.json(f"/topics/{topic}/messages?queue={queue}")["messages"]]


def bury(site, queue, contents, reason):
    queue.send(contents, fixed_time=1)
    with site.broker.consumer(queue.definition.name, "billing") as consumer:
        batch = consumer.poll(len(contents))
        batch.rollback(list(batch), reason=reason)
        batch.commit()


def test_a_topic_is_paused_and_resumed(site, orders):
    assert "is paused" in site.note(f"{ORDERS}/pause")
    assert site.broker.definition("Orders").paused
    assert "delivers again" in site.note(f"{ORDERS}/resume")
    assert not site.broker.definition("Orders").paused


def test_settings_are_changed(site, orders):
    form = {"max_retries": "3", "retry_backoff": "10s, 1m", "on_expiry": "dead"}
    site.note(f"{ORDERS}/settings", {**form, "dead_retention": "30d"})
    found = site.broker.definition("Orders")
    assert (found.max_retries, found.retry_backoff_ms) == (3, (10_000, 60_000))
    assert (found.on_expiry, found.dead_retention_ms) == ("dead", 30 * 86_400_000)


def test_the_form_of_a_topic_shows_values_that_it_accepts(site, orders):
    """Saving what the form shows must change nothing."""
    site.broker.alter("Orders", retry_backoff="10s, 1m", dead_retention="36h")
    before, shown = site.broker.definition("Orders"), site.json(ORDERS)
    form = {setting["name"]: setting["value"] for setting in shown["settings"]}
    assert form.keys() == FLAGS.keys()
    site.note(f"{ORDERS}/settings", form)
    assert site.broker.definition("Orders") == before


def test_the_form_changes_only_what_its_user_has_changed(site, orders):
    """Failed before: it set all again, and so undid what another had changed since it was shown."""
    page = site.page(ORDERS)
    form = dict(re.findall(r'name="(was_[a-z_]+)" value="([^"]*)"', page))
    form |= {name.removeprefix("was_"): value for name, value in form.items()}
    site.broker.alter("Orders", rate="500/s")
    told = site.note(f"{ORDERS}/settings", form | {"max_retries": "3"})
    assert "Orders: max_retries=3." in told
    found = site.broker.definition("Orders")
    assert (found.max_retries, found.text_of("rate")) == (3, "500/s")
    assert "No setting was changed" in site.note(f"{ORDERS}/settings", form)


@pytest.mark.parametrize(
    ("form", "accepted"),
    [
        ({"max_retries": "17"}, "0 to 16"),
        ({"retry_backoff": "soon"}, "a duration"),
        ({}, "max_"),
    ],
)
def test_bad_settings_are_told_and_change_nothing(site, orders, form, accepted):
    before = site.broker.definition("Orders")
    assert accepted in site.note(f"{ORDERS}/settings", form)
    assert site.broker.definition("Orders") == before


def test_a_test_message_is_sent(site, orders):
    form = {"content": "two\r\nlines & <b>", "delay": "1h", "slot_basis": "c"}
    assert "new" in site.note(f"{ORDERS}/send", form)
    shown = site.json(f"{ORDERS}/messages")["messages"]
    assert [one["slot"] for one in shown] == [orders.definition.slot_of("c")]
    assert orders.cancel(["two\nlines & <b>"], slot_basis="c") == 1
    assert "merged" in (site.note(f"{ORDERS}/send", form) and site.note(f"{ORDERS}/send", form))
    site.broker.alter("Orders", unique_for="1h")
    site.note(f"{ORDERS}/send", form | {"content": "once"})
    again = site.note(f"{ORDERS}/send", form | {"content": "once"})
    assert "did not accept the message: it accepted an equal one within unique_for=1h" in again


def test_a_keyed_message_is_sent(site):
    site.broker.create("Prices", "RangeMerge", 1, keyed=True)
    site.note("/topics/Prices/send", {"key": "sku", "content": "12", "time_range": "1h"})
    assert site.json("/topics/Prices/messages")["messages"][0]["keyPreview"] == "sku"


def test_a_test_message_without_a_time_is_due_now(site, orders):
    """Failed before: it was refused, in the words of Python."""
    assert "new" in site.note(f"{ORDERS}/send", {"content": "x"})
    assert orders.figures().store.due == 1


def test_a_bad_test_message_is_told(site, orders):
    assert "ccepted" in site.note(f"{ORDERS}/send", {"content": "x", "delay": "soon"})
    assert orders.figures().store.count == 0


def test_chosen_messages_are_cancelled(site, orders):
    orders.send([f"{number}" for number in range(10)], fixed_time=1)
    assert "3 messages cancelled" in site.note(f"{ORDERS}/cancel", {"ref": refs(site)[:3]})
    assert orders.figures().store.count == 7
    assert orders.figures().counters["cancelled"] == 3


def test_cancelling_twice_says_that_nothing_was_there(site, orders):
    orders.send(["x"], fixed_time=1)
    ref = refs(site)
    site.note(f"{ORDERS}/cancel", {"ref": ref})
    assert "0 messages cancelled" in site.note(f"{ORDERS}/cancel", {"ref": ref})
    assert "No message is chosen" in site.note(f"{ORDERS}/cancel")
    assert "could not be found" in site.note(f"{ORDERS}/cancel", {"ref": ["unknown"]})


def test_chosen_dead_messages_are_requeued_and_purged(site, orders):
    bury(site, orders, [f"{number}" for number in range(6)], "Broken: by hand")
    chosen = refs(site, "dead")
    assert "2 messages requeued" in site.note(f"{ORDERS}/requeue", {"ref": chosen[:2]})
    form = {"ref": chosen[2:5], "queue": "dead"}
    assert "3 messages deleted" in site.note(f"{ORDERS}/purge", form)
    figures = orders.figures()
    assert (figures.dead.count, figures.store.count) == (1, 2)


def test_a_requeue_of_priorities_needs_one(site):
    site.broker.create("Alerts", "Priority", 1, max_retries=0)
    queue = site.broker.queue("Alerts")
    queue.send([Message("x", priority=20)])
    with site.broker.consumer("Alerts", "a") as consumer:
        batch = consumer.poll(1)
        batch.rollback(list(batch))
        batch.commit()
    chosen = refs(site, "dead", "Alerts")
    assert "need a priority" in site.note("/topics/Alerts/requeue", {"ref": chosen})
    assert "1 message" in site.note("/topics/Alerts/requeue", {"ref": chosen, "priority": "30"})


def test_chosen_messages_that_wait_are_moved(site, orders):
    later = orders.now_ms() + 3_600_000
    orders.send(["a", "b", "c"], fixed_time=later)
    chosen = refs(site, "store")
    form = {"queue": "store", "ref": chosen[:1]}
    assert "1 message moved" in site.note(f"{ORDERS}/move", form)
    form = {"queue": "store", "ref": chosen[1:2], "delay": "2h"}
    assert "1 message moved" in site.note(f"{ORDERS}/move", form)
    assert orders.figures().store.due == 1


def test_held_messages_cannot_be_deleted(site, orders):
    orders.send(["x"], fixed_time=1)
    with site.broker.consumer("Orders", "a") as consumer:
        consumer.poll(1)
        form = {"ref": refs(site, "prepare"), "queue": "prepare"}
        assert "cannot be deleted" in site.note(f"{ORDERS}/purge", form)


def ended(site, number):
    """Waits until a job has ended."""
    until = time.monotonic() + 60
    while (job := site.json("/jobs")["jobs"][-number])["state"] == "running":
        assert time.monotonic() < until
        time.sleep(0.02)
    return job


@pytest.mark.parametrize(("reason", "changed"), [("ValueError", 30), ("", 50)])
@pytest.mark.parametrize("action", ["requeue", "purge"])
def test_a_job_changes_all_dead_or_those_of_a_reason(site, orders, action, reason, changed):
    bury(site, orders, [f"a{number}" for number in range(30)], ValueError("broken 7"))
    bury(site, orders, [f"b{number}" for number in range(20)], "lease ran out")
    site.note(f"{ORDERS}/job", {"action": action, "reason": reason})
    job = ended(site, 1)
    assert (job["state"], job["total"], job["looked"], job["changed"]) == ("done", 50, 50, changed)
    figures = orders.figures()
    assert figures.dead.count == 50 - changed
    assert figures.store.count == (changed if action == "requeue" else 0)
    assert "done" in site.page("/jobs")


def test_with_hidden_contents_a_reason_of_one_word_is_another(new_site):
    """Failed before: it passed for the class of an exception, and was shown."""
    site = new_site(allow_changes=True, hide_contents=True)
    site.broker.create("Orders", "FixedTime", 1, max_retries=0)
    queue = site.broker.queue("Orders")
    reasons = ["secret1", "secret2: x", "secret3 of bob", "", "lease ran out", "a.SomeFailure: x"]
    for at, reason in enumerate([*reasons, "HTTPError"]):
        bury(site, queue, [str(at)], reason)
    counted = {"other": 3, "none": 1, "lease ran out": 1, "a.SomeFailure": 1, "HTTPError": 1}
    dead = site.json(f"{ORDERS}/dead")
    assert {one["reason"]: one["messages"] for one in dead["reasons"]} == counted
    assert dead["diedEver"] == site.json(ORDERS)["deaths"] == counted
    listed = f"{ORDERS}/messages?queue=dead"
    [ref, *_] = refs(site, "dead")
    for path in (f"{ORDERS}/dead", listed, ORDERS, f"{ORDERS}/messages/{ref}?queue=dead"):
        assert "secret" not in site.page(path) + site.client.get(f"/api{path}").text
    for number, (reason, found) in enumerate([("secret1", 0), ("other", 3)], 1):
        assert len(site.json(f"{listed}&reason={reason}")["messages"]) == found
        site.note(f"{ORDERS}/job", {"action": "purge", "reason": reason})
        assert ended(site, number)["changed"] == found


def test_a_job_leaves_alone_what_dies_after_it_began(site, orders):
    bury(site, orders, ["a", "b"], "Broken: x")
    slot = orders.definition.slot_of("a")
    later = orders.now_ms() + 3_600_000
    site.broker.server.client.zadd(orders.keys.dead(slot), {"a": later})
    site.note(f"{ORDERS}/job", {"action": "requeue"})
    assert ended(site, 1)["changed"] == 1
    assert orders.figures().dead.count == 1


def test_a_job_is_stopped_and_resumed_and_loses_and_doubles_nothing(site, orders, monkeypatch):
    """Each message is in exactly one queue, whenever the job stops."""
    monkeypatch.setattr("rmq_spark.inspect.browse.ENTRIES_A_READ", 4)
    contents = [f"{number:04}" for number in range(8000)]
    bury(site, orders, contents, "Broken: x")
    for round_ in range(2000):
        path = "/jobs/1/resume" if round_ else f"{ORDERS}/job"
        site.note(path, {"action": "requeue"})
        site.note("/jobs/1/stop")
        figures, job = orders.figures(), site.json("/jobs")["jobs"][0]
        assert figures.dead.count + figures.store.count == 8000
        assert figures.store.count == job["changed"]
        if job["state"] == JobState.DONE:
            break
    assert (job["state"], job["changed"], figures.dead.count) == ("done", 8000, 0)
    assert round_ > 0
    found = [c for slot in orders.slots for p in orders.pages("store", slot) for c in p.contents]
    assert sorted(found) == [content.encode() for content in contents]


def test_a_job_with_a_fault_of_its_own_ends_and_is_resumed(site, orders, monkeypatch):
    """Else it would run for ever, and let no other job change this queue."""
    bury(site, orders, ["a", "b"], "Broken: x")
    with monkeypatch.context() as patched:
        patched.setattr("rmq_spark.console.jobs.requeue_page", lambda *_: 1 / 0)
        site.note(f"{ORDERS}/job", {"action": "requeue"})
        job = ended(site, 1)
    assert (job["state"], job["error"]) == ("failed", "ZeroDivisionError, see the console's log")
    assert "Job 1 has failed after 0 messages" in site.note("/jobs/1/stop")
    site.note("/jobs/1/resume")
    assert ended(site, 1)["changed"] == 2


def test_a_stop_tells_what_has_become_of_the_job(site, orders, monkeypatch):
    bury(site, orders, ["a"], "Broken: x")
    go_on, requeue = threading.Event(), jobs.requeue_page
    monkeypatch.setattr(jobs, "requeue_page", lambda *of: go_on.wait(60) and requeue(*of))
    monkeypatch.setattr(jobs, "STOPS_WITHIN_S", 0.01)
    site.note(f"{ORDERS}/job", {"action": "requeue"})
    assert "Job 1 has not stopped yet after 0 messages" in site.note("/jobs/1/stop")
    go_on.set()
    assert ended(site, 1)["state"] == JobState.DONE  # that was its last message
    for change in ("stop", "resume"):
        assert "Job 1 is done after 1 message" in site.note(f"/jobs/1/{change}")


def test_a_second_job_on_the_same_queue_is_refused(site, orders):
    bury(site, orders, ["a"], "Broken: x")
    job = site.console.jobs.start(Action.PURGE, orders, "local", "NoSuchReason", 0)
    ended(site, 1)
    job.state = JobState.RUNNING
    assert "changes the dead messages of this queue already" in site.note(
        f"{ORDERS}/job", {"action": "purge"}
    )


def test_a_job_that_fails_says_why_and_is_resumed(new_site, own_redis):
    site = new_site(url=own_redis.url, allow_changes=True)
    site.broker.create("Orders", "FixedTime", 1, max_retries=0)
    queue = site.broker.queue("Orders")
    bury(site, queue, ["a", "b"], "Broken: x")
    deaths = queue.keys.deaths(0)
    client = site.broker.server.client
    kept = client.hgetall(deaths)
    client.delete(deaths)
    client.set(deaths, "of another type")
    site.note(f"{ORDERS}/job", {"action": "requeue"})
    job = ended(site, 1)
    assert (job["state"], job["changed"]) == ("failed", 0)
    assert deaths in job["error"]
    client.delete(deaths)
    client.hset(deaths, mapping=kept)
    site.note("/jobs/1/resume")
    assert ended(site, 1)["changed"] == 2


@pytest.mark.parametrize("path", ["/jobs/1/stop", "/jobs/x/resume", "/jobs/99999999999/stop"])
def test_an_unknown_job_is_told(site, path):
    assert "There is no job" in site.note(path)


def test_a_bad_action_is_told(site, orders):
    assert "requeue, purge" in site.note(f"{ORDERS}/job", {"action": "eat"})


def test_schedules_are_paused_resumed_and_removed(site, orders):
    site.broker.schedule("nightly", "Orders", Message("x", delay="1h"), cron="0 3 * * *")
    key = schedules_key(site.broker.key_prefix)
    site.broker.server.client.hset(key, "later", "{}")
    page = site.page("/schedules")
    assert "later: The schedule later in rmq_schedules cannot be read" in page
    assert "is removed" in site.note("/schedules/later/remove")
    assert "0 3 * * * UTC" in page
    assert "/schedules/nightly/pause" in page
    assert "is paused" in site.note("/schedules/nightly/pause")
    assert site.json("/schedules")["schedules"][0]["paused"]
    assert "/schedules/nightly/resume" in site.page("/schedules")
    assert "goes on" in site.note("/schedules/nightly/resume")
    assert "is removed" in site.note("/schedules/nightly/remove")
    assert "There is no schedule nightly" in site.note("/schedules/nightly/remove")
    assert "is not a schedule" in site.note("/schedules/nightly/pause")
    assert "There are no schedules" in site.page("/schedules")


def test_a_change_of_a_topic_that_is_gone_is_told(site):
    assert "does not exist" in site.note("/topics/Gone/pause")


def test_every_change_is_logged_with_its_user_and_without_contents(site, orders, caplog):
    caplog.set_level(logging.INFO, "rmq_spark.console")
    site.note(f"{ORDERS}/send", {"content": "secret content", "delay": "0s"})
    site.note(f"{ORDERS}/pause")
    site.note(f"{ORDERS}/settings", {"max_retries": "2"})
    site.note(f"{ORDERS}/cancel", {"ref": refs(site)})
    site.note(f"{ORDERS}/job", {"action": "purge"})
    ended(site, 1)
    text = caplog.text
    for done in ("sent a message", "paused", "set max_retries=2", "cancelled 1 message", "job 1"):
        assert f"local {done}" in text or f"began {done}" in text, text
    assert "secret content" not in text


def test_a_line_of_the_log_is_one_line(site, orders, caplog):
    caplog.set_level(logging.INFO, "rmq_spark.console")
    site.post("/topics/Orders/settings", {"retry_backoff": "10s,\n1m", "max_retries": "5\n"})
    assert "local set max_retries=5, retry_backoff=10s, 1m of topic Orders" in caplog.messages[-1]


def test_a_note_leads_nowhere_else(site, orders):
    for back in (
        "//evil.example/x",
        "/\\evil.example/x",
        "\\\\evil.example",
        "https://evil.example/x",
        "javascript:x",
        "//[x",
        "/\t/evil.example/x",
        "/\t/[x",
    ):
        answer = site.client.post(
            f"{ORDERS}/pause",
            data={"mark": site.mark(), "back": back},
            headers={"Sec-Fetch-Site": "same-origin"},
            follow_redirects=False,
        )
        place = answer.headers["location"]
        assert (answer.status_code, place.partition("?")[0]) == (303, "/"), place
