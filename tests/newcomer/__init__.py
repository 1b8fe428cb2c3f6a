"""A newcomer's first tasks, done with nothing but what the pages of the site say.

`python -m tests.newcomer` times them in a fresh clone; tests/functional/test_newcomer.py runs them in the checkout.
"""
