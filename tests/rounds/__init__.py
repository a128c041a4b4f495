"""The kit for rounds of kills: what fails, when, what was sent and seen, and what must hold.

proxy.py cuts, hushes or holds connections; moments.py and gates.py hold a call or a task in its
middle; driver.py, service.py and jobs.py start what is killed; ledger.py numbers what is sent and
compares it with what was seen. Read moments.py first. Rounds are in the folders that use it:
faults, soak, ownership, ports and jobs.
"""
