"""What the queue promises, checked on each step: a call, the slot before it and after it.

None of this knows how a script works. Each function is one promise, its docstring the sentence
that is printed when a step breaks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rmq_spark.client import TopicDefinition, TopicType
from rmq_spark.topics.definition import BURY, KEEP_FIRST
from rmq_spark.topics.verdicts import Ending

from .ghosts import Ghost, Row
from .slot_state import (
    ALONE,
    FAR,
    MOST_RETRIES,
    SUSPECTS,
    Copy,
    Held,
    View,
    after_wait,
    deliveries_of,
    level_of,
)

SENDING = ("send", "requeue")
TOPIC_FULL = "RMQ_TOPICFULL"  # in place of the code of an error: the script answers with REFUSED
REFUSED = -1
OF_A_RUN = ("plan", "claim", "replay", "commit", "renew", "release", "abandon", "unread")
COMMIT_NAMES = 8  # of claims that a commit was not told, at most


@dataclass
class Step:
    """A call that was made. error: the code it was refused with, or ""; answer: what it returned.

    ghost: what was seen of the slot up to this step. named: the claims that the caller named.
    unnamed: what a claim answered that was not told of all others.
    """

    action: Any
    before: View
    after: View
    ghost: Ghost
    named: frozenset[str]
    topic: TopicDefinition
    error: str = ""
    answer: Any = None
    unnamed: frozenset[str] | None = None
    forgotten: bool = False  # the claim was not made, for its plan is not known
    paused: bool = False  # the claim was not made, for the topic is paused

    def done(self, *kinds: str) -> bool:
        """Whether it is a call of one of these kinds, and was not refused."""
        return not self.error and self.action.kind in kinds

    def settles(self, name: str) -> bool:
        """Whether it is a commit that ends that claim: an empty one, or one that it names."""
        return self.may_settle(name) and (name in self.named or not self.before.held(name))

    def may_settle(self, name: str) -> bool:
        """Whether it is a commit of that claim, by the run that has made or replayed it."""
        consumer, seq, _ = name.split(":")
        by = self.action
        if not self.done("commit") or consumer != by.consumer or int(seq) > by.seq:
            return False
        record = self.before.claims.get(name)
        return record is not None and by.run in (record.run, record.replayed)

    @property
    def makes_a_claim(self) -> bool:
        not_made = self.forgotten or self.paused or self.unnamed is not None
        return self.done("claim") and not not_made and self.action.claim not in self.before.claims

    @property
    def knows_the_plan(self) -> bool:
        """Whether a claim has no plan, or one that the server cannot have forgotten."""
        return self.action.mark in ("", self.ghost.marks.get(self.action.consumer))

    @property
    def reads_again(self) -> bool:
        return self.done("claim") and self.action.claim in self.before.claims

    @property
    def max_retries(self) -> int:
        return self.topic.max_retries

    @property
    def exclusive(self) -> bool:
        return self.topic.exclusive

    @property
    def descending(self) -> bool:
        return self.topic.type.descending

    @property
    def keyed(self) -> bool:
        return self.topic.keyed

    @cached_property
    def brings(self) -> dict[str, Copy]:
        """The bodies that begin to wait, by content.

        A requeue gives way to what waits, and so does a send where the first payload stays. What
        was requeued gives way to what comes back from a claim.
        """
        by, before = self.action, self.before
        if not self.keyed:
            return {}
        if not self.done(*SENDING):
            return {
                content: before.held_body(content)
                for content, held in before.prepare.items()
                if content in before.bodies
                and before.bodies[content].requeued
                and comes_back(self, content, held)
            }
        if by.kind == "requeue":
            return {
                content: before.dead_bodies[content]._replace(expires=None, requeued=True)
                for content in by.contents & before.dead_bodies.keys() - before.waiting
            }
        merged = before.waiting if self.topic.payload == KEEP_FIRST else set()
        copy = Copy(by.payload, FAR if by.expires else None)
        return dict.fromkeys(by.contents - merged, copy)

    @cached_property
    def expired(self) -> set[str]:
        """The contents that a new claim found expired."""
        if not (self.keyed and self.makes_a_claim):
            return set()
        over = {c for c, copy in self.before.bodies.items() if copy and copy.is_over}
        return over - self.after.waiting

    def deliveries(self, view: View, content: str) -> int:
        """How often a message may be delivered from now on, that of the newest copy."""
        waiting = view.retry.get(content, (0, False))
        copies = [deliveries_of(after_wait(waiting[0]))]
        if content in view.store:
            copies.append(self.deliveries_of_score(view.store[content]))
        if content in view.prepare:
            held = view.prepare[content]
            unread = held.claim in view.claims and view.claims[held.claim].run == 0
            copies.append(held.left + unread)
        return max(copies)

    def deliveries_of_score(self, score: float) -> int:
        return deliveries_of(score) if score <= MOST_RETRIES else self.max_retries + 1

    def charges(self, content: str, claim: str) -> bool:
        """Whether a message of a claim loses a delivery, should this call take it out.

        If its holder has lost the claim, only one that was delivered alone does.
        """
        record = self.before.claims[claim]
        if self.action.ending in (Ending.UNCHARGED, Ending.UNREAD):
            return False
        was_alone = level_of(self.before.scores(claim)[content]) == ALONE
        is_blamed = self.action.kind == "rollback" or record.given_up or was_alone
        return record.run > 0 and is_blamed


def refused_calls_change_nothing(step: Step) -> bool:
    """A refused call changes nothing, and is refused by the queue, not by Redis."""
    return not step.error or (step.error.startswith("RMQ_") and step.after.slot == step.before.slot)


def nothing_waiting_is_lost(step: Step) -> bool:
    """What waits in store or retry queue stays, unless it is claimed or cancelled."""
    may = step.action.contents if step.done("cancel") else set()
    if step.makes_a_claim:
        may = step.after.held(step.action.claim).keys() | step.expired
    return step.before.waiting - step.after.waiting <= may


def nothing_in_flight_is_lost(step: Step) -> bool:
    """What is in flight stays so, waits again, is committed by its consumer, or is buried."""
    return all(
        step.settles(held.claim)
        or content in (step.after.dead if is_spent(step, content, held) else step.after.anywhere)
        for content, held in step.before.prepare.items()
        if not still_holds(step, content, held)
    )


def is_spent(step: Step, content: str, held: Held) -> bool:
    """Whether it dies, should it leave its claim: it has no delivery left, or is buried."""
    if step.action.ending is Ending.BURY:
        return True
    return held.left == 0 and step.charges(content, held.claim)


def still_holds(step: Step, content: str, held: Held) -> bool:
    now = step.after.prepare.get(content)
    return now is not None and now.claim == held.claim


def the_dead_stay_dead(step: Step) -> bool:
    """Only requeue takes from the dead queue, and what it takes waits again."""
    risen = step.before.dead - step.after.dead
    allowed = step.action.contents & step.after.waiting if step.done("requeue") else set()
    return risen <= allowed


def the_dead_tell_why(step: Step) -> bool:
    """With every dead message its consumer and a reason are kept, and with no other."""
    return not step.after.slot.untold


def only_the_spent_are_buried(step: Step) -> bool:
    """A message dies when its last delivery failed, its consumer buries it, or it expires."""
    held = {content: step.before.prepare.get(content) for content in step.after.dead}
    return all(
        held[content] is not None
        and is_spent(step, content, held[content])
        and not still_holds(step, content, held[content])
        for content in step.after.dead - step.before.dead - step.expired
    )


def each_is_in_its_place(step: Step) -> bool:
    """A message in flight belongs to one claim, and no copy has a twin that nobody sent."""
    view = step.after
    twins = view.store.keys() & view.prepare.keys()
    twins -= step.before.store.keys() & step.before.prepare.keys()
    return (
        sum(len(messages) for _, messages in view.slot.held) == len(view.prepare)
        and not view.retry.keys() & (view.store.keys() | view.prepare.keys())
        and twins <= (step.action.contents if step.done(*SENDING) else set())
    )


def records_tell_what_is_held(step: Step) -> bool:
    """A claim's key is there with its record, and holds what that says; no part of one is left."""
    view = step.after
    return (
        not view.slot.part
        and view.claims.keys() >= {name for name, _ in view.slot.held}
        and all(
            record.held == len(view.scores(name)) <= record.sealed
            for name, record in view.claims.items()
        )
    )


def records_stay(step: Step) -> bool:
    """What a claim took at first is noted when it is made, and stays so."""
    made = step.action.claim if step.makes_a_claim else None
    return all(
        record.sealed == len(step.after.scores(name)) and record.max_retries == step.max_retries
        if name == made
        else (record.sealed, record.max_retries)
        == (step.before.claims[name].sealed, step.before.claims[name].max_retries)
        for name, record in step.after.claims.items()
        if name == made or name in step.before.claims
    )


def counters_balance(step: Step) -> bool:
    """What was accepted is in exactly one queue, or came to exactly one end."""
    return step.after.slot.balance == 0


def claims_never_grow(step: Step) -> bool:
    """A claim never grows, is made once, and by a call that says its name and may pop."""
    made = step.action.claim if step.makes_a_claim and not step.action.replay_only else None
    return all(
        step.after.held(name).keys() <= step.before.held(name).keys()
        if name in step.before.claims
        else name == made and name not in step.ghost.made
        for name in step.after.claims
    )


def claims_are_kept(step: Step) -> bool:
    """A claim is there, whole, until its commit, its rollback, or the end of its lease."""
    return all(
        is_kept(step, name) or step.settles(name) or was_given_back(step, name)
        for name in step.before.claims
    ) and (not step.makes_a_claim or step.action.claim in step.after.claims)


def is_kept(step: Step, name: str) -> bool:
    missing = step.before.held(name).keys() - step.after.held(name).keys()
    by = step.action
    if missing and not (by.kind == "rollback" and by.claim == name):
        return False
    return name in step.after.claims and missing <= by.contents


def was_given_back(step: Step, name: str) -> bool:
    if step.done("abandon"):  # with nothing to give back
        return name.startswith(f"{step.action.consumer}:") and not step.before.held(name)
    expired = step.before.held(name) and not step.before.claims[name].live
    return step.done("give_back") and name == step.action.claim and bool(expired)


def what_is_given_back_is_whole(step: Step) -> bool:
    """A claim that is given back is gone, and all it held waits or is buried; a lease prevents it.

    The answer is the number of messages.
    """
    if not step.done("give_back"):
        return True
    record, held = step.before.claims.get(step.action.claim), step.before.held(step.action.claim)
    if record is None or record.live or not held:
        return step.answer == 0 and is_unchanged(step)
    gone = step.action.claim not in step.after.claims
    spent = {c for c, left in held.items() if left == 0 and step.charges(c, step.action.claim)}
    to_wait = held.keys() - spent
    return (
        gone
        and step.answer == len(held)
        and to_wait <= step.after.waiting
        and spent <= step.after.dead
    )


def who_leaves_names_what_it_holds(step: Step) -> bool:
    """A consumer that leaves gets the names of its claims to give back, and has no others."""
    if not step.done("abandon"):
        return True
    own = {name for name in step.after.claims if name.split(":")[0] == step.action.consumer}
    return step.answer == own and own <= set(step.before.holding)


def what_has_expired_is_listed(step: Step) -> bool:
    """Those who ask get the names of just the claims that are to be given back; nothing changes."""
    if not step.done("expire", "due"):
        return True
    listed = step.answer if step.done("expire") else frozenset(step.answer[0].expired)
    over = {name for name in step.before.holding if not step.before.claims[name].live}
    return listed == over and is_unchanged(step)


def who_names_too_few_is_told(step: Step) -> bool:
    """A claim that is not told of all that it must look into changes nothing and names them.

    Those are the claims that hold messages and since which others have arrived. A claim that is
    told of all of them, or exists, is never refused so.
    """
    others = step.before.compared
    if step.unnamed is None:
        return not step.makes_a_claim or others <= step.named
    is_new = step.action.claim not in step.before.claims
    return is_new and step.unnamed == others and not others <= step.named and is_unchanged(step)


def a_commit_names_what_it_leaves(step: Step) -> bool:
    """A commit answers the names of the claims that it would have ended, had it been told them."""
    if not step.done("commit"):
        return True
    left = {name for name in step.before.claims if step.may_settle(name) and not step.settles(name)}
    return len(step.answer) == min(len(left), COMMIT_NAMES) and step.answer <= left


def only_what_was_planned_is_claimed(step: Step) -> bool:
    """A claim of a plan is made where that plan is known, and where it is not nothing changes."""
    if step.forgotten or (step.paused and not step.knows_the_plan):
        is_new = step.action.claim not in step.before.claims
        return not step.knows_the_plan and is_new and is_unchanged(step)
    return step.knows_the_plan or not step.makes_a_claim


def is_unchanged(step: Step) -> bool:
    return step.after.slot == step.before.slot


def a_paused_slot_makes_no_claim(step: Step) -> bool:
    """While a slot is paused no claim is made there, and any that exists is answered."""
    if step.paused:
        return step.ghost.paused and step.action.claim not in step.before.claims
    return not (step.ghost.paused and step.makes_a_claim)


def readers_get_what_is_held(step: Step) -> bool:
    """A claim returns exactly what it holds from then on, in order, with the retries left."""
    if not step.done("claim") or step.unnamed is not None:
        return True
    got = [(content, left) for content, _, left, _ in step.answer]
    held = list(step.after.held(step.action.claim).items())
    return got == (held[::-1] if step.descending else held)


def reads_are_equal(step: Step) -> bool:
    """Two reads of a claim are equal, but for what was rolled back; retries change with the run."""
    if not step.reads_again:
        return True
    run, rows = step.ghost.reads[step.action.claim]
    again = step.answer
    if run == step.action.run:
        return again == rows
    return without_retries(again) == without_retries(rows)


def without_retries(rows: Sequence[Row]) -> list[tuple]:
    return [(content, score, payload) for content, score, _, payload in rows]


def order_is_kept(step: Step) -> bool:
    """Retries come first, or last in a Priority topic; the others in order of their scores."""
    if not step.makes_a_claim:
        return True
    scores = [score or 0 for _, score, _, _ in step.answer]  # None on a retry
    return scores == sorted(scores, reverse=step.descending)


def equals_come_in_turn(step: Step) -> bool:
    """Of equal priorities, what came first is claimed first, and what is sent goes behind."""
    before, after = step.before.slot.equals, step.after.slot.equals
    priority = step.before.store | step.after.store
    if step.makes_a_claim:
        # One with a copy in flight waits until that has ended.
        left = [c for c in before if c in step.after.store and c not in step.before.prepare]
        taken = [c for c in before if c not in step.after.store]
        return not any(
            priority[one] == priority[other] and before.index(other) < before.index(one)
            for one in taken
            for other in left
        )
    if step.done("send"):
        behind = [c for c in before if c not in step.action.contents]
        return [c for c in after if c in behind] == [c for c in behind if c in after] and all(
            after.index(one) < after.index(sent)
            for sent in step.action.contents & set(after)
            for one in set(after) - step.action.contents
            if priority[one] == priority[sent]
        )
    return True


def a_delivery_costs_one(step: Step) -> bool:
    """A delivery, to a new claim or to a newer run, costs one of the deliveries left."""
    if not step.done("claim") or step.unnamed is not None:
        return True
    record = step.before.claims.get(step.action.claim)
    after = step.after.held(step.action.claim)
    if record is None:
        return all(left == source(step, content) - 1 for content, left in after.items())
    before = step.before.held(step.action.claim)
    cost = 0 < record.run < step.action.run
    return all(left == max(0, before.get(content, 0) - cost) for content, left in after.items())


def source(step: Step, content: str) -> int:
    """The deliveries left of the copy that a new claim took: one in the store wins."""
    if content in step.before.store:
        return step.deliveries_of_score(step.before.store[content])
    return step.deliveries(step.before, content)


def only_deliveries_cost(step: Step) -> bool:
    """Retries never rise but by a new send or requeue, and fall only by a delivery."""
    renewed = step.action.contents if step.done("send", "requeue", "cancel") else set()
    delivered = step.after.held(step.action.claim) if step.done("claim") else {}
    return all(
        may_be_left(step, content)
        for content in step.after.anywhere
        if content not in renewed and content not in delivered
    )


def may_be_left(step: Step, content: str) -> bool:
    was, left = step.deliveries(step.before, content), step.deliveries(step.after, content)
    if step.done("unread"):
        return was <= left <= min(was + 1, step.max_retries + 1)
    held = step.before.prepare.get(content)
    if held and comes_back(step, content, held) and content not in step.before.waiting:
        return left == held.left + (not step.charges(content, held.claim))
    return left == was


def scores_stay(step: Step) -> bool:
    """What was sent keeps its score in the store, whatever comes back, until a send or a move."""
    sent = step.action.contents if step.done("send", "move") else set()
    return all(
        step.after.store[content] == score
        for content, score in step.before.store.items()
        if content in step.after.store and content not in sent
    )


def what_is_delayed_waits(step: Step) -> bool:
    """A send with a delay moves the due time of its messages to when the delay is over."""
    return not (step.action.delayed and step.done("send")) or all(
        step.after.store.get(content) == FAR for content in step.action.contents
    )


def claims_keep_scores(step: Step) -> bool:
    """A message keeps in its claim the score that it had in the store, or that of its retries."""
    return all(
        score == score_before(step, name, content)
        for name in step.after.claims
        for content, score in step.after.scores(name).items()
    )


def score_before(step: Step, name: str, content: str) -> float | None:
    if name in step.before.claims:
        return step.before.scores(name).get(content)
    waiting = step.before.retry.get(content)
    return step.before.store.get(content, after_wait(waiting[0]) if waiting else None)


def older_runs_take_nothing(step: Step) -> bool:
    """A run that was superseded is refused, in whatever it calls; so is a batch that is settled."""
    by, ghost = step.action, step.ghost
    if by.kind in OF_A_RUN and by.run < ghost.runs.get(by.consumer, 0):
        return step.error == "RMQ_FENCED"
    if by.kind == "claim" and by.seq <= ghost.settled.get(by.consumer, 0):
        return step.error == "RMQ_ALREADYCOMMITTED"
    return True


def older_runs_roll_back_nothing(step: Step) -> bool:
    """Only the run that a claim was delivered to last rolls its messages back."""
    if not step.done("rollback"):
        return True
    run, _ = step.ghost.reads.get(step.action.claim, (0, ()))
    return run == step.action.run or step.after.slot == step.before.slot


def is_full(step: Step) -> bool:
    most = step.topic.max_messages
    return most is not None and len(step.before.waiting) >= most


def a_full_slot_takes_nothing_new(step: Step) -> bool:
    """A slot that holds as many messages as may wait takes only those that merge."""
    return not (step.done("send") and is_full(step)) or step.action.contents <= step.before.waiting


def refused_for_a_reason(step: Step) -> bool:
    """No call is refused that should not be: the newest run reads what is there."""
    by, ghost = step.action, step.ghost
    latest = ghost.latest(by.consumer)
    reasons = {
        "RMQ_FENCED": by.run < ghost.runs.get(by.consumer, 0),
        "RMQ_ALREADYCOMMITTED": by.seq <= ghost.settled.get(by.consumer, 0),
        "RMQ_LEASELOST": by.claim not in step.before.claims
        and (by.replay_only or (by.seq, by.ordinal) <= latest),
        "RMQ_EXCLUSIVE": by.epoch is None and ghost.epoch > 0,
        TOPIC_FULL: is_full(step) and not by.contents <= step.before.waiting,
    }
    return reasons.get(step.error, False)


def an_exclusive_slot_has_one_consumer(step: Step) -> bool:
    """In an exclusive slot one consumer has messages in flight, and a lower epoch takes none."""
    if not step.exclusive:
        return True
    fenced = step.makes_a_claim and step.action.epoch < step.ghost.epoch
    return len(step.after.holders()) <= 1 and not (fenced and step.after.held(step.action.claim))


def commits_take_what_was_read(step: Step) -> bool:
    """A commit ends what its own run has read, all of it, and nothing that its run has not read."""
    if not step.done("commit"):
        return True
    return not any(map(step.settles, step.after.claims)) and all(
        step.ghost.reads[name][0] == step.action.run
        for name in step.before.claims
        if step.settles(name) and step.before.held(name)
    )


def leases_are_the_consumers_own(step: Step) -> bool:
    """A lease begins by its consumer's claim, replay or renewal, and ends by time or release."""
    return all(
        record.live == expected_lease(step, name) for name, record in step.after.claims.items()
    )


def expected_lease(step: Step, name: str) -> bool:
    by = step.action
    consumer, seq, _ = name.split(":")
    if step.done("renew", "release", "abandon") and consumer == by.consumer:
        return by.kind == "renew"
    if step.done("replay") and consumer == by.consumer and int(seq) <= by.seq:
        return True
    if step.done("claim") and by.claim == name:
        return True
    return name in step.before.claims and step.before.claims[name].live


def what_is_due_is_taken(step: Step) -> bool:
    """A claim that had room has left nothing that is due and that nobody holds.

    What had expired has taken room. A claim of suspects leaves all that are not of their level.
    """
    by = step.action
    if not step.makes_a_claim or len(step.after.held(by.claim)) + len(step.expired) == by.limit:
        return True
    if level := level_taken(step):
        left = [c for c, score in step.after.store.items() if level_of(score) == level]
        has_room = len(step.after.held(by.claim)) + len(step.expired) < SUSPECTS[level]
        return not has_room or step.after.prepare.keys() >= set(left)
    # In an exclusive slot, what others have left is given back first, by whoever plans.
    others = any(not name.startswith(f"{by.consumer}:") for name in step.before.holding)
    return is_held_back(step, step.exclusive and others) or not any_waits(step.after, by.alone)


def what_is_due_is_counted(step: Step) -> bool:
    """A slot of which a claim could take something is never said to have nothing due."""
    if not step.done("due"):
        return True
    [slot] = step.answer
    held = [name for name in step.before.holding if not step.before.claims[name].live]
    live = set(step.before.holding) - set(held)
    others = any(not name.startswith(f"{step.action.consumer}:") for name in live)
    if is_held_back(step, step.exclusive and others):
        return slot.due == 0 and not slot.alone
    levels = set(map(level_of, step.before.store.values()))
    waits_over = any(not waits for _, waits in step.before.retry.values())
    if slot.alone != (ALONE in levels) and not waits_over:
        return False
    return slot.due > 0 or not (held or any_waits(step.before))


def is_held_back(step: Step, others: bool) -> bool:
    """Whether others, a higher epoch or a pause keep the caller from taking anything."""
    return step.ghost.paused or (step.action.epoch or 0) < step.ghost.epoch or others


def any_waits(view: View, alone: bool = True) -> bool:
    """Whether anything waits that may be taken now. alone: by one who holds nothing else."""
    return any(
        score != FAR and content not in view.prepare and (alone or level_of(score) < ALONE)
        for content, score in view.store.items()
    ) or any(not waits for _, waits in view.retry.values())


def level_taken(step: Step) -> int:
    """The level of the suspects that a new claim has taken, 0 if it has taken others or none."""
    taken = [*step.after.scores(step.action.claim), *step.expired]
    return max((level_of(score_of_copy(step, content)) for content in taken), default=0)


def score_of_copy(step: Step, content: str) -> float:
    waiting = step.before.retry.get(content, (0, False))
    return step.before.store.get(content, after_wait(waiting[0]))


def suspects_come_with_few(step: Step) -> bool:
    """Suspects come without others, so many at most, and the most suspect ones to who is alone."""
    if not step.makes_a_claim or not (level := level_taken(step)):
        return True
    taken = step.after.scores(step.action.claim)
    return (
        len(taken) <= SUSPECTS[level]
        and {level_of(score) for score in taken.values()} <= {level}
        and (level < ALONE or step.action.alone)
    )


def what_is_lost_is_suspect(step: Step) -> bool:
    """What comes back from a claim that its holder has lost is more suspect; nothing else is."""
    return all(
        level_of(score) == expected_level(step, content)
        for content, score in [
            *step.after.store.items(),
            *((content, after_wait(score)) for content, (score, _) in step.after.retry.items()),
        ]
        if score != FAR
    )


def expected_level(step: Step, content: str) -> int:
    if step.done("send") and content in step.action.contents:
        is_kept = content in step.before.store and step.topic.type == TopicType.RANGE_MERGE
        return level_of(step.before.store[content]) if is_kept else 0
    if content in step.before.store:
        return level_of(step.before.store[content])
    if content in step.before.retry:
        return level_of(after_wait(step.before.retry[content][0]))
    held = step.before.prepare.get(content)
    if held is None or not comes_back(step, content, held):
        return 0
    level, record = (
        level_of(step.before.scores(held.claim)[content]),
        step.before.claims[held.claim],
    )
    if step.done("rollback"):
        return level if step.action.ending is Ending.UNREAD else 0
    if record.run == 0:  # nobody got it
        return level
    if record.given_up:
        return 0
    lost = len(step.before.held(held.claim))
    return min(ALONE, max(level + 1, 1 if lost > 256 else 2 if lost > 16 else 3))


def only_a_consumer_gives_up_its_claims(step: Step) -> bool:
    """A claim is given up by the run that has it, if no error has ended its work."""
    by = step.action
    return all(
        record.given_up
        == (
            by.run == record.run and not by.failed
            if step.done("abandon") and name.startswith(f"{by.consumer}:")
            else not record.live
            and name in step.before.claims
            and step.before.claims[name].given_up
            and not is_ended_anew(step, name)
        )
        for name, record in step.after.claims.items()
    )


def is_ended_anew(step: Step, name: str) -> bool:
    return step.done("release") and name.startswith(f"{step.action.consumer}:")


# -- of keyed topics


def each_has_its_body(step: Step) -> bool:
    """Each message that waits has one body, each claim those of its messages; no other is left."""
    view = step.after
    return (
        view.bodies.keys() == view.waiting
        and view.claim_bodies.keys() == set(view.holding)
        and all(view.held(name).keys() == view.claim_bodies[name].keys() for name in view.holding)
        and view.dead_bodies.keys() == view.dead
        and None not in view.bodies.values()
        and None not in view.dead_bodies.values()
        and all(None not in bodies.values() for bodies in view.claim_bodies.values())
    )


def the_newer_body_stays(step: Step) -> bool:
    """A message that waits has the body that was sent last, or the one that came back with it.

    Where the topic keeps the first payload, a send changes no message that waits.
    """
    return all(copy == expected_body(step, c) for c, copy in step.after.bodies.items())


def comes_back(step: Step, content: str, held: Held) -> bool:
    """Whether a message leaves its claim for the store or the retry queue."""
    gone = not still_holds(step, content, held) and not step.settles(held.claim)
    return gone and not is_spent(step, content, held)


def expected_body(step: Step, content: str) -> Copy | None:
    if content in step.brings:
        return step.brings[content]
    if content in step.before.bodies:
        return step.before.bodies[content]
    return step.before.held_body(content) if content in step.before.prepare else None


def bodies_go_with_their_messages(step: Step) -> bool:
    """A claim keeps the bodies that its messages had in the store, a dead message that it had."""
    before, after = step.before, step.after
    in_claims = all(
        after.held_body(content)
        == (
            before.held_body(content)
            if held.claim in before.claims
            else before.bodies[content]._replace(requeued=False)
        )
        for content, held in after.prepare.items()
    )
    return in_claims and all(
        copy == dead_body(step, content) for content, copy in after.dead_bodies.items()
    )


def dead_body(step: Step, content: str) -> Copy | None:
    before = step.before
    if content in step.expired and step.topic.on_expiry == BURY:
        return before.bodies[content]
    held = before.prepare.get(content)
    if held and not still_holds(step, content, held) and not step.settles(held.claim):
        spent = is_spent(step, content, held)
        return before.held_body(content) if spent else before.dead_bodies[content]
    return before.dead_bodies.get(content)


def readers_get_the_payloads(step: Step) -> bool:
    """A claim hands out each message with its own payload."""
    return not (step.done("claim") and step.unnamed is None) or all(
        step.after.claim_bodies[step.action.claim][content].payload == payload
        for content, _, _, payload in step.answer
    )


def the_newest_payload_is_never_lost(step: Step) -> bool:
    """What came last is there until it is committed, cancelled or expired, or a newer one comes."""
    return all(
        newest in payloads_of(step.after, content)
        or newest not in payloads_of(step.before, content)
        or may_end(step, content)
        for content, (*_, newest) in step.ghost.sent
        if content not in step.brings
    ) and all(
        copy.payload in payloads_of(step.after, content) for content, copy in step.brings.items()
    )


def payloads_of(view: View, content: str) -> set[str]:
    return {copy.payload for copy in view.copies(content) if copy}


def may_end(step: Step, content: str) -> bool:
    held = step.before.prepare.get(content)
    return (
        content in step.expired
        or (step.done("cancel") and content in step.action.contents)
        or (held is not None and step.settles(held.claim))
    )


def no_older_payload_overtakes(step: Step) -> bool:
    """After a payload of a key, a new claim gives no older one."""
    if not step.makes_a_claim:
        return True
    ranks = {c: payloads.index for c, payloads in step.ghost.payloads.items()}
    last = step.ghost.last_given
    return all(
        payload in step.ghost.payloads[content]
        and ranks[content](payload) >= ranks[content](last.get(content, payload))
        for content, _, _, payload in step.answer
    )


def what_has_expired_is_not_given(step: Step) -> bool:
    """A new claim gives nothing that has expired; where the topic says so, that is buried."""
    if not step.makes_a_claim:
        return True
    given = step.after.claim_bodies.get(step.action.claim, {})
    if any(copy.is_over for copy in given.values()):
        return False
    died = step.after.dead - step.before.dead
    buried = all(step.after.dead_bodies.get(c) == step.before.bodies[c] for c in step.expired)
    return buried if step.topic.on_expiry == BURY else not died


OF_BODIES = (
    readers_get_the_payloads,
    the_newest_payload_is_never_lost,
    no_older_payload_overtakes,
    each_has_its_body,
    the_newer_body_stays,
    bodies_go_with_their_messages,
    what_has_expired_is_not_given,
)
OF_REFUSALS = (
    refused_calls_change_nothing,
    older_runs_take_nothing,
    refused_for_a_reason,
)
PROMISES = (
    equals_come_in_turn,
    a_full_slot_takes_nothing_new,
    nothing_waiting_is_lost,
    nothing_in_flight_is_lost,
    the_dead_stay_dead,
    the_dead_tell_why,
    only_the_spent_are_buried,
    each_is_in_its_place,
    records_tell_what_is_held,
    older_runs_take_nothing,
    older_runs_roll_back_nothing,
    who_names_too_few_is_told,
    claims_never_grow,
    claims_are_kept,
    records_stay,
    a_paused_slot_makes_no_claim,
    what_is_given_back_is_whole,
    who_leaves_names_what_it_holds,
    what_has_expired_is_listed,
    only_what_was_planned_is_claimed,
    readers_get_what_is_held,
    reads_are_equal,
    order_is_kept,
    a_delivery_costs_one,
    scores_stay,
    what_is_delayed_waits,
    claims_keep_scores,
    only_deliveries_cost,
    an_exclusive_slot_has_one_consumer,
    commits_take_what_was_read,
    a_commit_names_what_it_leaves,
    leases_are_the_consumers_own,
    what_is_due_is_taken,
    what_is_due_is_counted,
    suspects_come_with_few,
    what_is_lost_is_suspect,
    only_a_consumer_gives_up_its_claims,
    counters_balance,
)
