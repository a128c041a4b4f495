"""Many changes of who shares a topic: services leave, are killed, stopped and cut off, at random.

Rounds add up in a file. A round that was interrupted leaves no line there.
"""

import random
from collections import Counter
from pathlib import Path

from ..measured import append, commit, lines_of, machine, now
from . import streams
from .round import (
    SERVICES,
    Round,
    all_join,
    cut_off,
    kill,
    kill_leader,
    leave,
    pause_beside,
)

WAYS = {"left": leave, "killed": kill, "stopped": pause_beside, "cut off": cut_off}
# How often the ensemble's leader is killed beside the services.
LEADER = 0.1


def play(round_: Round, wanted: int, seed: int) -> Counter[str]:
    """Changes who shares the topic until it has changed so often; returns how often by way."""
    dice = random.Random(seed)
    done: Counter[str] = Counter()
    all_join(round_)
    while round_.changes < wanted:
        # Each way as often as any other, in an order of chance.
        least = min(done[way] for way in WAYS)
        way = dice.choice([way for way in WAYS if done[way] == least])
        WAYS[way](round_, dice.choice(SERVICES))
        done[way] += 1
        if dice.random() < LEADER:
            kill_leader(round_)
            round_.until_shared("the ensemble's leader was killed", *SERVICES)
            done["leader killed"] += 1
    round_.work("all three work", 100)
    return done


def keep(file: Path, round_: Round, ways: Counter[str], verdict: streams.Verdict) -> None:
    """Adds a round to the file."""
    append(
        file,
        {
            **{"date": now(), "commit": commit(), "machine": machine(), "seed": round_.seed},
            **{"changes": round_.changes, "ways": ways, "verdict": vars(verdict)},
            "longest": max(step.seconds for step in round_.steps),
        },
    )


def summary(file: Path) -> list[str]:
    """Says what all rounds of a file add up to."""
    rounds = list(lines_of(file))
    ways: Counter[str] = sum((Counter(each["ways"]) for each in rounds), Counter())
    found: Counter[str] = Counter()
    for each in rounds:
        found.update(each["verdict"])
    changes = sum(each["changes"] for each in rounds)
    longest = max((each["longest"] for each in rounds), default=0.0)
    return [
        f"{changes} changes in {len(rounds)} rounds: "
        f"{', '.join(f'{name} {count}' for name, count in sorted(ways.items()))}.",
        f"{', '.join(f'{name} {count}' for name, count in found.items())}.",
        f"The longest step took {longest:.1f} s. Commits: "
        f"{', '.join(sorted({each['commit'] for each in rounds}))}. Seeds: "
        f"{', '.join(str(each['seed']) for each in rounds)}.",
    ]
