# ruff: noqa: T201 - a program: it talks to its user
"""Explores the worlds on a Redis server of its own, and prints how much was seen of each."""

import argparse
import sys
from pathlib import Path

from rmq_spark.local.redis import LocalRedis
from rmq_spark.protocol import scripts

from .explorer import ExploredServer, Explorer, PromiseBroken, Tally
from .worlds import WORLDS, World

ROW = "{:<10} {:>5} {:>9} {:>9} {:>9} {:>8}"
COLUMNS = ("world", "depth", "states", "steps", "merged", "seconds")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("--world", choices=[w.name for w in WORLDS], help="only this one")
    parser.add_argument(
        "--depth", type=int, help="calls on a path, 1 or more; each world has its own"
    )
    parser.add_argument("--lua-dir", type=Path, help="take the scripts from this folder")
    given = parser.parse_args(words)
    if given.depth is not None and given.depth < 1:
        parser.error(f"--depth={given.depth}: a path has 1 call or more.")
    return given


def explored(server: ExploredServer, world: World, depth: int) -> Tally:
    return Explorer(server, world, depth, f"{world.name}:").run()


def row(tally: Tally) -> str:
    depth = tally.depth or ""
    numbers = (f"{number:,}" for number in (tally.states, tally.steps, tally.merged))
    return ROW.format(tally.world, depth, *numbers, f"{tally.seconds:.1f}")


def total_of(tallies: list[Tally]) -> Tally:
    sums = {f: sum(getattr(t, f) for t in tallies) for f in COLUMNS[2:]}
    return Tally("total", 0, **sums)


def main(words: list[str]) -> int:
    """0 if every promise held, 1 if one broke."""
    wanted = parse(words)
    worlds = [world for world in WORLDS if wanted.world in (None, world.name)]
    tallies = []
    print(ROW.format(*COLUMNS))
    with LocalRedis(settings={"appendonly": "no"}) as redis:
        server = ExploredServer(redis.url, wanted.lua_dir or scripts._lua_folder())
        for world in worlds:
            try:
                tallies.append(explored(server, world, wanted.depth or world.depth))
            except PromiseBroken as broken:
                print(broken)
                return 1
            print(row(tallies[-1]), flush=True)
            for text in sorted(tallies[-1].idle):
                print(f"  changed nothing anywhere: {text}")
    print(row(total_of(tallies)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
