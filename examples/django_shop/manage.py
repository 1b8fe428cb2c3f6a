"""A Django project that sends messages on commit, and handles them in `manage.py rmq_worker`.

Run: `pip install 'rmq[django]'`, set RMQ_URL, then in this folder `python manage.py migrate --run-syncdb`,
`python manage.py runserver` and, in another terminal, `python manage.py rmq_worker`;
then `curl -X POST localhost:8000/items/mug/399`.
"""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
