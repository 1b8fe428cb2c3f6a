"""Random histories: real processes, real servers, random faults; then a judge reads what everybody wrote down.

python -m tests.histories --server 6.2 --minutes 10 --seed 1
"""
