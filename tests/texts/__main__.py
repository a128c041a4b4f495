"""Write what is wrong with pages, docstrings, imports and notebooks; exit with 1 if anything is."""

import gc
import sys


def main() -> int:
    # Syntax trees are many objects that stay: collecting garbage would take a third of the time.
    gc.disable()
    from .rules import complaints

    found = complaints()
    sys.stdout.writelines(f"{complaint}\n" for complaint in found)
    return bool(found)


sys.exit(main())
