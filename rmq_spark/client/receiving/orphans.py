"""Child processes end with their parent: others get its messages when its leases end."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # from Linux' sys/prctl.h
_PARENT_CHECK_S = 1.0


def end_with_parent(parent: int) -> None:
    """End this process, even if it hangs, when the thread that started it ends.

    Outside of Linux: within a second after the process ``parent``, with all of its process group.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the lines above
        os._exit(0)


def _watch(parent: int) -> None:
    """Kill this process, and those that it has started, when the parent has ended."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)
