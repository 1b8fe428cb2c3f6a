"""Adapters for web frameworks, one module each.

`rmq.adapters.fastapi`, `rmq.adapters.django` (an app for `INSTALLED_APPS`) and `rmq.adapters.flask`.
"""
