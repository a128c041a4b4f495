"""How slots are shared out: no server."""

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.ownership.member import balance
from rmq_spark.ownership.nodes import Nodes, read_assignment, write_assignment

MEMBERS = st.sets(st.sampled_from("abcdefgh"), min_size=1)
SLOTS = st.sampled_from([1, 2, 16, 64])


@st.composite
def shared_before(draw):
    """A number of slots, and an assignment of some of them."""
    slots = draw(SLOTS)
    of = {slot: draw(st.sampled_from("abcdefgh") | st.none()) for slot in range(slots)}
    return slots, {
        name: [s for s in of if of[s] == name] for name in "abcdefgh" if name in of.values()
    }


@given(shared_before(), MEMBERS)
def test_every_slot_has_one_owner_and_nobody_two_more_than_another(before, members):
    slots, shares = before
    after = balance(shares, members, slots)
    assert after.keys() == members
    assert sorted(slot for own in after.values() for slot in own) == list(range(slots))
    sizes = [len(own) for own in after.values()]
    assert max(sizes) - min(sizes) <= 1


@given(shared_before(), MEMBERS)
def test_no_more_slots_move_than_balance_needs(before, members):
    slots, shares = before
    after = balance(shares, members, slots)
    kept = sum(len(set(shares.get(name, ())) & set(after[name])) for name in members)
    share, extra = divmod(slots, len(members))
    sizes = sorted((len(shares.get(name, ())) for name in members), reverse=True)
    most_that_can_stay = sum(min(size, share + (at < extra)) for at, size in enumerate(sizes))
    assert kept == most_that_can_stay


@given(shared_before(), MEMBERS)
def test_what_is_balanced_stays_as_it_is_and_all_agree(before, members):
    slots, shares = before
    after = balance(shares, members, slots)
    assert balance(after, members, slots) == after
    assert balance(dict(reversed(shares.items())), sorted(members), slots) == after


def test_slots_that_do_not_exist_any_more_or_twice_are_nobodys():
    assert balance({"a": [0, 0, 7, -1], "b": [1]}, ["a", "b"], 4) == {"a": [0, 2], "b": [1, 3]}


@given(shared_before())
def test_an_assignment_is_read_as_it_was_written(before):
    _, shares = before
    assert read_assignment(write_assignment(shares)) == shares


def test_another_form_of_assignment_is_taken_for_none():
    for text in (b"", b"{}", b'{"version": 2, "members": {"a": [1]}}', b"[1]", b'{"version": 1}'):
        assert read_assignment(text) == {}


def test_nodes_have_these_names():
    nodes = Nodes("/rmq", "shop:Orders@mail")
    assert nodes.definition == "/rmq/shop:Orders@mail"
    assert nodes.member("w-1") == "/rmq/shop:Orders@mail/members/w-1"
    assert nodes.assignment == "/rmq/shop:Orders@mail/assignment"
    assert nodes.slot(63) == "/rmq/shop:Orders@mail/slots/63"
    assert Nodes("/rmq", "a/b:T").definition == "/rmq/a%2Fb:T"
    assert Nodes("/a/b", "..").definition == "/a/b/%2E%2E"
