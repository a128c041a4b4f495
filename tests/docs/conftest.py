"""The newest redis-server there is: what differs between versions other tests look at."""

from .. import on_newest

redis_executable, redis_url, server = on_newest.fixtures()
