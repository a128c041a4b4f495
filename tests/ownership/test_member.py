"""Members of one topic on a real ZooKeeper: who owns what, from joining to being lost."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_digest_acl

from rmq_spark.errors import OwnershipRefused, OwnershipUnavailable, TopicMismatch
from rmq_spark.local.zookeeper import LocalEnsemble
from rmq_spark.ownership.member import Member, State
from rmq_spark.ownership.zookeeper import EnsembleOptions
from rmq_spark.topics.definition import TopicDefinition, TopicType

from ..waiting import wait_until

SLOTS = 8
TOPIC = TopicDefinition("T", TopicType.FIXED_TIME, SLOTS)
SESSION_MS = 6000  # a shorter one may end on a busy machine


@pytest.fixture
def join(zookeeper, root):
    """Starts members of one topic; all leave in the end."""
    joined = []

    def start(name, definition=TOPIC, **options):
        given = {
            "hosts": zookeeper.hosts,
            "root": root,
            "session_timeout_ms": SESSION_MS,
            **options,
        }
        member = Member(EnsembleOptions(**given), definition, "T", name).start()
        joined.append(member)
        return member

    start.joined = joined
    yield start
    for member in joined:
        member.stop()


def joined_as(join, name):
    return next((member for member in join.joined if member._consumer == name), None)


def owned(member, count, within_s=60.0):
    return wait_until(
        lambda: len(found := member.between_batches()) == count and found,
        f"{count} slots",
        within_s,
    )


def shared(*members):
    """Lets go and waits until all slots are shared out evenly; what each owns."""

    def even():
        found = [member.between_batches() for member in members]
        sizes = [len(own) for own in found]
        return sum(sizes) == SLOTS and max(sizes) - min(sizes) <= 1 and found

    return wait_until(even, "shared out")


def test_alone_it_owns_every_slot_under_an_epoch_of_its_own(join):
    epochs = owned(join("a"), SLOTS)
    assert list(epochs) == list(range(SLOTS))
    assert len(set(epochs.values())) == SLOTS
    assert all(epoch > 0 for epoch in epochs.values())


def test_who_joins_gets_a_slot_only_once_its_owner_lets_it_go(join):
    first = join("a")
    before = owned(first, SLOTS)
    second = join("b")
    wait_until(lambda: len(first.members) == len(second.members) == 2, "they know each other")
    assert not second.wait_for_slots(0.5)
    assert second.between_batches() == {}
    kept = first.between_batches()
    assert len(kept) == SLOTS // 2
    assert kept.items() <= before.items()
    got = owned(second, SLOTS // 2)
    assert second.wait_for_slots(1)
    assert kept.keys() | got.keys() == before.keys()
    assert all(got[slot] > before[slot] for slot in got)


def test_a_third_one_moves_only_what_balance_needs(join):
    first, second = join("a"), join("b")
    before = shared(first, second)
    third = join("c")
    after = shared(first, second, third)
    assert sorted(map(len, after)) == [2, 3, 3]
    assert after[0].items() <= before[0].items()
    assert after[1].items() <= before[1].items()


def test_what_one_leaves_the_others_get(join):
    first, second = join("a"), join("b")
    shared(first, second)
    second.stop()
    assert second.state is State.STOPPED
    assert second.between_batches() == {}
    owned(first, SLOTS)


def test_more_members_than_slots_leave_some_with_none(join):
    one = TopicDefinition("T", TopicType.FIXED_TIME, 1)
    first, second = join("a", one), join("b", one)
    counts = wait_until(
        lambda: sorted(c := [len(w.between_batches()) for w in (first, second)]) == [0, 1] and c,
        "one owns the slot",
    )
    (second if counts[1] else first).stop()
    owned(first if counts[1] else second, 1)


def test_all_changes_at_once_end_well(join):
    members = [join(name) for name in "abcde"]
    shared(*members)
    for member in members[:3]:
        member.stop()
    late = [join(name) for name in "fg"]
    shared(*members[3:], *late)


def test_it_is_written_who_and_where(join, client, root):
    member = join("a")
    owned(member, SLOTS)
    (name,) = client.get_children(f"{root}/T/members")
    about = json.loads(client.get(f"{root}/T/members/{name}")[0])
    assert (about["consumer"], about["pid"]) == ("a", os.getpid())
    assert TopicDefinition.from_json("T", client.get(f"{root}/T")[0]) == TOPIC
    assert client.get(f"{root}/T/slots/0")[0].decode() == name
    assert member.members == (name,)
    assert member.slots_owned == SLOTS


def test_a_node_that_somebody_deletes_is_made_again_under_a_higher_epoch(join, client, root):
    member = join("a")
    before = owned(member, SLOTS)
    client.delete(f"{root}/T/slots/3")
    after = wait_until(
        lambda: (now := member.between_batches()).get(3, 0) > before[3] and now, "made again"
    )
    assert after.keys() == before.keys()


def test_an_assignment_that_is_spoiled_is_made_anew(join, client, root):
    member = join("a")
    owned(member, SLOTS)
    client.set(f"{root}/T/assignment", b"no JSON")
    owned(member, SLOTS)
    wait_until(lambda: client.get(f"{root}/T/assignment")[0].startswith(b"{"), "made anew")


# -- the connection


@pytest.mark.long
def test_while_it_cannot_know_it_claims_nothing_and_then_goes_on(root):
    with LocalEnsemble() as own:
        options = EnsembleOptions(own.hosts, root, session_timeout_ms=60_000)
        member = Member(options, TOPIC, "T", "a").start()
        try:
            before = owned(member, SLOTS)
            own.servers[0].kill()
            wait_until(lambda: member.state is State.SUSPENDED, "suspended")
            assert member.between_batches() == {}
            assert member.slots_owned == SLOTS
            own.servers[0].start()
            # A server that is just starting may accept a connection and never answer on it. kazoo
            # waits for its answer for two thirds of the session's timeout, 40 s.
            same = owned(member, SLOTS, within_s=180.0)
            assert same == before  # the same session: the same epochs
        finally:
            member.stop()


@pytest.mark.long
def test_it_can_leave_while_zookeeper_is_gone(root):
    with LocalEnsemble() as own:
        options = EnsembleOptions(own.hosts, root, session_timeout_ms=20_000)
        member = Member(options, TOPIC, "T", "a").start()
        owned(member, SLOTS)
        own.servers[0].kill()
        member.stop()
        assert member.state is State.STOPPED
        assert member.between_batches() == {}


@pytest.mark.long
def test_a_server_that_hangs_is_as_good_as_none(root):
    with LocalEnsemble() as own:
        options = EnsembleOptions(own.hosts, root, session_timeout_ms=3000)
        member = Member(options, TOPIC, "T", "a").start()
        try:
            owned(member, SLOTS)
            os.kill(own.servers[0].pid, signal.SIGSTOP)
            wait_until(lambda: member.state is State.SUSPENDED, "suspended")
            with pytest.raises(OwnershipUnavailable, match="did not answer within 3000 ms"):
                Member(options, TOPIC, "T", "b").start()
            os.kill(own.servers[0].pid, signal.SIGCONT)
            owned(member, SLOTS)
        finally:
            member.stop()


def end_session(member, hosts):
    """Ends a member's session as ZooKeeper does when it has not heard of it for too long."""
    twin = KazooClient(hosts, client_id=member._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


def test_lost_it_owns_nothing_and_joins_again_under_higher_epochs(join, zookeeper):
    member = join("a")
    before = owned(member, SLOTS)
    states = []
    member._client.add_listener(lambda _: states.append(member.state))
    end_session(member, zookeeper.hosts)
    after = wait_until(
        lambda: (now := member.between_batches()) and now != before and now, "joined again"
    )
    after = owned(member, SLOTS)
    assert State.LOST in states
    assert all(after[slot] > before[slot] for slot in after)
    assert len(member.members) == 1


def test_what_a_lost_one_owned_the_other_gets_meanwhile(join, zookeeper):
    first, second = join("a"), join("b")
    shared(first, second)
    end_session(first, zookeeper.hosts)
    shared(first, second)


def before_call(member, number, do):
    """Does something before the so manieth call of the member's thread to ZooKeeper."""
    calls = itertools.count()
    for name in ("get_children", "get", "set", "create", "exists_async", "create_async"):
        real = getattr(member._client, name)

        def call(*arguments, real=real, **more):
            if next(calls) == number:
                do()
            return real(*arguments, **more)

        setattr(member._client, name, call)


@pytest.mark.parametrize("number", range(10))
def test_a_session_that_ends_between_two_calls_leaves_nothing_behind(join, zookeeper, number):
    first = join("a")
    owned(first, SLOTS)
    client, session = first._client, first._client.client_id[0]

    def end():
        end_session(first, zookeeper.hosts)
        wait_until(lambda: client.client_id and client.client_id[0] != session, "a new session")

    before_call(first, number, end)
    second = join("b")
    shared(first, second)
    wait_until(lambda: len(first.members) == len(second.members) == 2, "they know each other")


@pytest.mark.parametrize("number", range(3))
def test_a_slot_whose_making_was_not_answered_goes_to_whom_it_is_assigned(join, number):
    first = join("a")
    real, calls = first._client.create_async, itertools.count()

    def lost(*arguments, **more):
        reply = real(*arguments, **more)
        if next(calls) == 2 + number:
            reply.get()
            join("b")
            raise ConnectionLoss
        return reply

    first._client.create_async = lost
    second = wait_until(lambda: joined_as(join, "b"), "b has joined")
    shared(first, second)


@contextmanager
def other_process(zookeeper, root):
    """A member in a process of its own."""
    code = (
        "import sys, time\n"
        "from rmq_spark.topics.definition import TopicDefinition, TopicType\n"
        "from rmq_spark.ownership.zookeeper import EnsembleOptions\n"
        "from rmq_spark.ownership.member import Member\n"
        f"options = EnsembleOptions({zookeeper.hosts!r}, {root!r}, {SESSION_MS})\n"
        f"topic = TopicDefinition('T', TopicType.FIXED_TIME, {SLOTS})\n"
        "member = Member(options, topic, 'T', 'other').start()\n"
        "while True:\n"
        "    sys.stdout.write(f'{len(member.between_batches())} {member.state.value}\\n')\n"
        "    sys.stdout.flush()\n"
        "    time.sleep(0.05)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.send_signal(signal.SIGCONT)
            program.kill()


def until_it_says(program, wanted):
    for line in program.stdout:
        if line.decode().split()[0] == str(wanted):
            return
    raise AssertionError("the other process ended")


def test_what_a_killed_process_owned_the_other_gets_after_its_session(join, zookeeper, root):
    with other_process(zookeeper, root) as program:
        until_it_says(program, SLOTS)
        member = join("a")
        owned(member, SLOTS // 2)
        program.kill()
        owned(member, SLOTS)


@pytest.mark.long
def test_a_process_that_was_stopped_past_its_session_joins_again(join, zookeeper, root):
    with other_process(zookeeper, root) as program:
        until_it_says(program, SLOTS)
        member = join("a")
        owned(member, SLOTS // 2)
        program.send_signal(signal.SIGSTOP)
        all_of_them = owned(member, SLOTS)
        program.send_signal(signal.SIGCONT)
        assert len(owned(member, SLOTS // 2).items() & all_of_them.items()) == SLOTS // 2
        until_it_says(program, SLOTS // 2)


@pytest.mark.long
def test_the_ensembles_leader_may_die(root):
    with LocalEnsemble(3) as own:
        options = EnsembleOptions(own.hosts, root, session_timeout_ms=10_000)
        members = [Member(options, TOPIC, "T", name).start() for name in "ab"]
        try:
            before = shared(*members)
            leader = wait_until(lambda: own.leader, "a leader")
            leader.kill()
            wait_until(lambda: own.leader not in (None, leader), "another leader")
            assert shared(*members) == before
            members[1].stop()
            owned(members[0], SLOTS)
        finally:
            for member in members:
                member.stop()


# -- what is bad from the beginning


def test_an_ensemble_that_is_not_there_is_an_error_within_the_timeout(join):
    with pytest.raises(OwnershipUnavailable, match=r"127.0.0.1:1 did not answer within 1000 ms"):
        join("a", hosts="127.0.0.1:1", session_timeout_ms=1000)


def test_a_definition_that_differs_from_redis_is_refused_showing_both(join):
    join("a")
    other = TopicDefinition("T", TopicType.PRIORITY, 16)
    with pytest.raises(
        TopicMismatch, match=r"FixedTime and slotAmount=8.*Priority and slotAmount=16"
    ):
        join("b", other)


def test_settings_that_have_changed_are_brought_up_to_date(join, client, root):
    join("a")
    changed = TopicDefinition("T", TopicType.FIXED_TIME, SLOTS, max_retries=3)
    join("b", changed)
    assert TopicDefinition.from_json("T", client.get(f"{root}/T")[0]) == changed


def test_what_a_user_makes_is_for_that_user_alone(join, client, root):
    login = {"username": "rmq", "password": "hidden-secret"}
    member = join("a", **login)
    owned(member, SLOTS)
    client.add_auth("digest", "rmq:hidden-secret")
    for path in (root, f"{root}/T", f"{root}/T/slots/0", f"{root}/T/assignment"):
        (acl,) = client.get_acls(path)[0]
        assert acl.id.scheme == "digest", path
    shared(member, join("b", **login))


@pytest.mark.parametrize(
    "login", [{}, {"username": "rmq", "password": "wrong-secret"}], ids=["none", "wrong"]
)
def test_another_user_is_refused_and_told_what_to_check(join, login):
    join("a", username="rmq", password="hidden-secret")
    with pytest.raises(OwnershipRefused, match=r"zookeeper.username and zookeeper.password") as no:
        join("b", **login)
    assert "secret" not in str(no.value)


def test_a_root_that_may_not_be_written_is_refused(join, client, root):
    client.create(root, acl=[make_digest_acl("admin", "x", all=True)])
    with pytest.raises(OwnershipRefused, match=f"refuses {root} to nobody"):
        join("a")


def test_a_path_behind_the_hosts_is_made(join, client, zookeeper, root):
    member = join("a", hosts=f"{zookeeper.hosts}/a/b")
    owned(member, SLOTS)
    assert client.exists(f"/a/b{root}/T/slots/0")


def test_a_node_that_somebody_deletes_is_created_again(join, client, root):
    """Failed before: until another one joined, the members could not agree any more."""
    first, second = join("a"), join("b")
    shared(first, second)
    client.delete(f"{root}/T/assignment")
    wait_until(lambda: client.exists(f"{root}/T/assignment"), "the node")
    second.stop()
    owned(first, SLOTS)


def test_a_member_joins_an_ensemble_that_has_lost_its_data(join, root):
    """Failed before: its client had seen later changes, and was refused for ever."""
    with LocalEnsemble(settings={"tickTime": "200"}) as ensemble:
        member = join("a", hosts=ensemble.hosts, session_timeout_ms=1000)
        owned(member, SLOTS)
        (server,) = ensemble.servers
        server.kill()
        for folder in server._folder.glob("**/version-2"):
            shutil.rmtree(folder)
        server.start()
        wait_until(lambda: not member.between_batches(), "the end of the session")
        owned(member, SLOTS)
        member.stop()
