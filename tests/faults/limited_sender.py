"""A sender to be killed: sends all numbers below one, in an order of its own, to a topic T.

Arguments: the address of Redis, how many numbers, and the seed of the order.
"""

import random
import sys
import time

from rmq_spark.client import connect
from rmq_spark.errors import TopicFull

NUMBERS_A_SEND = 200


def main() -> None:
    url, how_many, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    numbers = list(range(how_many))
    random.Random(seed).shuffle(numbers)
    with connect(url) as broker:
        queue = broker.queue("T")
        for start in range(0, how_many, NUMBERS_A_SEND):
            contents = [f"{number}" for number in numbers[start : start + NUMBERS_A_SEND]]
            while True:
                try:
                    queue.send(contents, fixed_time=0)
                    break
                except TopicFull:
                    time.sleep(0.01)


if __name__ == "__main__":
    main()
