"""A view that changes a price, and requests a new picture when the change is committed."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from rmq import RangeMergeMessage
from rmq.adapters.django import send_on_commit
from shop.models import Item
from shop.rmq_handlers import PRICE


@transaction.atomic
def price_changed(request: HttpRequest, name: str, price: int) -> JsonResponse:
    """Change a price."""
    Item.objects.update_or_create(name=name, defaults={"price": price})
    send_on_commit(PRICE, RangeMergeMessage(name, "500ms"))
    if price == 0:
        raise ValueError(f"{name} is not for free")  # rolled back: nothing is sent
    return JsonResponse({"name": name, "price": price})


urlpatterns = [path("items/<str:name>/<int:price>", price_changed)]
