"""Breadth first through a world: every order of its calls, each made by the real scripts on Redis.

To make a call in a state, the slot is put back to that state, the script runs, and the slot is
read: three calls on one connection (and behind a claim the command that reads it), thousands of
them in a pipeline. Every step is checked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import redis

from rmq_spark.protocol.calls import Call, Read
from rmq_spark.protocol.scripts import Effect, Script, load_scripts
from rmq_spark.redis.connection import parse_connection
from rmq_spark.redis.server import FIRST_WITH_FLAGS, Server, with_reads_behind

from .calls import Action, Calls, Unnamed
from .ghosts import Ghost, after, forgotten
from .promises import OF_BODIES, OF_REFUSALS, PROMISES, REFUSED, TOPIC_FULL, Step
from .slot_state import FAR, KINDS, Slot, expired, fallen_back, slot_of, values_of, view_of
from .worlds import World

STATES_AT_ONCE = 32
# A busy machine is no reason to end an exploration.
PATIENCE = "60s"
HERE = Path(__file__).parent
PLAN_FORGOTTEN, TOPIC_PAUSED = 2, 3  # as claim.lua answers
DUE = 1000  # the score of a message whose timeRange is over


class ExploredServer(Server):
    """A server that also knows how to put a slot back, and how to read one."""

    def __init__(self, url: str, lua: Any) -> None:
        super().__init__(parse_connection({"url": url, "sockettimeout": PATIENCE}))
        known = load_scripts(lua, self.version >= FIRST_WITH_FLAGS)
        own = {
            n: Script(n, (HERE / f"{n}.lua").read_text(), Effect.MOVES) for n in ("restore", "dump")
        }
        self._scripts = known | own
        self.id = self.client.info("replication")["master_replid"]

    def replies(self, calls: list[Call | Read]) -> list[Any]:
        """The replies in order; a refusal is a reply too."""
        return self._run(calls, with_reads_behind)

    def now_ms(self) -> int:
        """The server's time, in whole seconds."""
        return int(self.command("TIME")[0]) * 1000


class State(NamedTuple):
    """Where a path has led.

    called: how often each bounded call was made on it. saved: what the server may fall back to.
    """

    slots: tuple[Slot, ...]
    ghosts: tuple[Ghost, ...]
    called: tuple[tuple[str, int], ...] = ()
    saved: tuple[tuple[Slot, Ghost], ...] = ()


@dataclass
class Tally:
    """What was seen.

    steps: pairs of a state and a call. merged: ways, by a call or by time alone, to a known state.
    idle: calls that have never changed anything.
    """

    world: str
    depth: int
    states: int = 0
    steps: int = 0
    merged: int = 0
    seconds: float = 0
    idle: set[str] = field(default_factory=set)


class PromiseBroken(AssertionError):
    """Names the promise, and shows the shortest path of calls that breaks it.

    promise: None for a key that no path tells of.
    """

    def __init__(self, promise: Callable[[Step], bool] | None, report: str) -> None:
        super().__init__(report)
        self.promise = promise


class Explorer:
    def __init__(self, server: ExploredServer, world: World, depth: int, prefix: str) -> None:
        self.server, self.world, self.depth = server, world, depth
        self.prefix = prefix
        self.names = [world.claims(slot) for slot in range(world.slots)]
        self.calls = Calls(world.topic, prefix, self.names)
        keys, self.keyed = self.calls.keys, world.topic.keyed
        before_bodies = [
            [*(getattr(keys, kind)(s) for kind in KINDS), *keys.claims_of(s, names)]
            for s, names in enumerate(self.names)
        ]
        self.bodies = [
            [keys.bodies(s), *(keys.claim_bodies(s, name) for name in names)] if self.keyed else []
            for s, names in enumerate(self.names)
        ]
        self.before_bodies = list(map(len, before_bodies))
        self.keys = [a + b for a, b in zip(before_bodies, self.bodies, strict=True)]
        self.promises = PROMISES + OF_BODIES * self.keyed
        self.came_from: dict[State, tuple[State, str] | None] = {}
        self.tally = Tally(
            world.name,
            depth,
            idle={action.text for action in world.actions if action.kind not in ("due", "expire")},
        )

    def run(self) -> Tally:
        """Sees every state within the depth. Raises PromiseBroken at the first broken promise."""
        began = time.monotonic()
        layer = [self.beginning()]
        for _ in range(self.depth):
            layer = self.next_layer(layer)
        self.check_keys()
        self.server.command("UNLINK", *(key for slot in self.keys for key in slot))
        self.tally.states = len(self.came_from)
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def check_keys(self) -> None:
        """Scripts use the keys that they are told; one that makes up another would leave it."""
        known = {key.encode() for slot in self.keys for key in slot}
        strange = set(self.server.client.scan_iter(f"{self.prefix}*", count=1000)) - known
        if strange:
            raise PromiseBroken(None, f"World {self.world.name}: nobody was told of {strange}.")

    def beginning(self) -> State:
        slots = range(self.world.slots)
        state = State(tuple(Slot() for _ in slots), tuple(Ghost() for _ in slots))
        self.came_from[state] = None
        for text in self.world.begin:
            action = self.world.action(text)
            [(_, _, state)] = self.steps([(state, action)])
            self.came_from.setdefault(state, None)
        return state

    def next_layer(self, layer: list[State]) -> list[State]:
        found: list[State] = []
        for at in range(0, len(layer), STATES_AT_ONCE):
            states = layer[at : at + STATES_AT_ONCE]
            wanted = [
                (s, action) for s in states for action in self.world.actions if self.may(s, action)
            ]
            self.tally.steps += len(wanted)
            for state, action, new in self.steps(wanted):
                self.note(state, action.text, new, found)
            for state in states:
                for text, new in (*passing_time(state), *self.forgetting(state)):
                    self.note(state, text, new, found)
        return found

    def forgetting(self, state: State) -> Iterator[tuple[str, State]]:
        """The server's state is saved, and it falls back to that."""
        if not self.world.forgets:
            return
        if not state.saved:
            saved = tuple(zip(state.slots, state.ghosts, strict=True))
            yield "the state is saved", state._replace(saved=saved)
        else:
            slots = tuple(fallen_back(slot) for slot, _ in state.saved)
            ghosts = tuple(
                forgotten(before, now)
                for (_, before), now in zip(state.saved, state.ghosts, strict=True)
            )
            yield "the server falls back", state._replace(slots=slots, ghosts=ghosts, saved=())

    def note(self, state: State, text: str, new: State, found: list[State]) -> None:
        if new in self.came_from:
            self.tally.merged += 1
            return
        self.came_from[new] = (state, text)
        found.append(new)

    def may(self, state: State, action: Action) -> bool:
        if action.times is not None and dict(state.called).get(action.text, 0) >= action.times:
            return False
        return self.world.may(state, action)

    def steps(self, wanted: list[tuple[State, Action]]) -> Iterator[tuple[State, Action, State]]:
        """Makes each call in its state, and checks what came of it."""
        now_ms = self.server.now_ms()
        calls = [list(self.calls_of(state, action, now_ms)) for state, action in wanted]
        replies = iter(self.server.replies([call for of_step in calls for call in of_step]))
        for (state, action), of_step in zip(wanted, calls, strict=True):
            _, *answers, dump = (next(replies) for _ in of_step)
            names = self.names[action.slot]
            after = slot_of(dump, names, self.world.turns, self.server.id)
            step = self.step(state, action, answers, after)
            yield state, action, self.leads_to(state, step)

    def calls_of(self, state: State, action: Action, now_ms: int) -> Iterator[Call | Read]:
        slot, keys = state.slots[action.slot], self.keys[action.slot]
        values = values_of(slot, self.names[action.slot], now_ms, self.server.id, self.world.topic)
        yield Call("restore", keys, values)
        yield from self.calls.of(action, view_of(slot).holding)
        yield Call("dump", keys, [self.before_bodies[action.slot]])

    def step(self, state: State, action: Action, replies: list[Any], slot: Slot) -> Step:
        before, reply = view_of(state.slots[action.slot]), replies[0]
        step = Step(
            action,
            before=before,
            after=view_of(slot),
            ghost=state.ghosts[action.slot],
            named=frozenset(self.calls.named(action, before.holding)),
            topic=self.world.topic,
        )
        if isinstance(reply, redis.ResponseError):
            step.error = str(reply).split(" ")[0]
        elif action.kind == "send" and reply[0] == REFUSED:
            step.error = TOPIC_FULL
        else:
            step.answer = self.calls.answer(action, before.holding, replies)
            if isinstance(step.answer, Unnamed):
                step.unnamed = step.answer.names
            elif action.kind == "claim":
                step.forgotten, step.paused = reply[1] == PLAN_FORGOTTEN, reply[1] == TOPIC_PAUSED
        of = OF_REFUSALS if step.error else self.promises
        broken = next((promise for promise in of if not promise(step)), None)
        if broken:
            raise PromiseBroken(broken, self.report(broken.__doc__, state, step, reply))
        if step.after.slot != step.before.slot:
            self.tally.idle.discard(action.text)
        return step

    def leads_to(self, state: State, step: Step) -> State:
        if step.error:
            return state
        at, called = step.action.slot, dict(state.called)
        if step.action.times is not None:
            called[step.action.text] = called.get(step.action.text, 0) + 1
        return state._replace(
            slots=(*state.slots[:at], step.after.slot, *state.slots[at + 1 :]),
            ghosts=(*state.ghosts[:at], after(step), *state.ghosts[at + 1 :]),
            called=tuple(sorted(called.items())),
        )

    # -- what is printed

    def report(self, promise: str | None, state: State, step: Step, reply: Any) -> str:
        path = [*self.path(state), step.action.text]
        lines = [f"World {self.world.name}: {promise}", "The calls:"]
        lines += [f"  {number}. {text}" for number, text in enumerate(path, 1)]
        lines += [f"The last one answered: {reply!r}"]
        for name, view in (("before", step.before), ("after", step.after)):
            lines += [f"The slot {name} it:"]
            lines += [
                f"  {field}: {value}" for field, value in view.slot._asdict().items() if value
            ]
        return "\n".join(lines)

    def path(self, state: State) -> list[str]:
        """The shortest way to a state: what the world begins with, and the calls since."""
        texts: list[str] = []
        while (came := self.came_from[state]) is not None:
            state, text = came
            texts.append(text)
        return [*self.world.begin, *reversed(texts)]


def passing_time(state: State) -> Iterator[tuple[str, State]]:
    """What time alone does, one thing at a time."""
    for at, slot in enumerate(state.slots):
        for text, new in times_of(slot):
            slots = (*state.slots[:at], new, *state.slots[at + 1 :])
            yield f"{text} in slot {at}", state._replace(slots=slots)


def times_of(slot: Slot) -> Iterator[tuple[str, Slot]]:
    for name, record in slot.claims:
        if record.live:
            over = tuple((n, r._replace(live=r.live and n != name)) for n, r in slot.claims)
            yield f"the lease of {name} runs out", slot._replace(claims=over)
    if any(waits for _, _, waits in slot.retry):
        over = tuple((content, left, False) for content, left, _ in slot.retry)
        yield "the waits end", slot._replace(retry=over)
    if any(score == FAR for _, score in slot.store):
        due = tuple((content, DUE if score == FAR else score) for content, score in slot.store)
        yield "what is stored becomes due", slot._replace(store=due)
    copies = [*slot.bodies, *(copy for _, bodies in slot.claim_bodies for copy in bodies)]
    if any(copy and copy.expires == FAR for _, copy in copies):
        in_claims = tuple((name, expired(bodies)) for name, bodies in slot.claim_bodies)
        yield (
            "what can expire does",
            slot._replace(
                bodies=expired(slot.bodies),
                claim_bodies=in_claims,
                dead_bodies=expired(slot.dead_bodies),
            ),
        )
