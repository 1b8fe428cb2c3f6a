"""Settings of the example. RMQ needs INSTALLED_APPS and RMQ."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))

INSTALLED_APPS = ["rmq.adapters.django", "shop"]
RMQ = {"URL": os.environ.get("RMQ_URL"), "TIMEOUT_S": 5}

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "shop.views"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["localhost", "testserver"]
USE_TZ = True
