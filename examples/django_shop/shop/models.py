"""An item, its price, and how often its picture was drawn."""

from django.db import models


class Item(models.Model):
    """What the shop sells."""

    name = models.CharField(max_length=100, unique=True)
    price = models.IntegerField()
    drawn_price = models.IntegerField(null=True)
