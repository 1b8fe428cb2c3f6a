"""RMQ in web frameworks: a module for each, imported only by who uses it.

`rmq.adapters.fastapi`, `rmq.adapters.django` (an app for `INSTALLED_APPS`) and `rmq.adapters.flask`.
"""
