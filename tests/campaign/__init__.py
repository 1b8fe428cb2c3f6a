"""A long run of real processes on a cluster under seeded faults; a judge reads what everybody wrote down.

    python -m tests.campaign --minutes 30 --seed 1

docs/internals/verification.md says what it does, and docs/records/campaign.md what the last run gave.
"""
