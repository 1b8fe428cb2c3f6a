"""Who acts on a slot."""

from __future__ import annotations

from typing import NamedTuple


class Owner(NamedTuple):
    """The owner of a slot, as scripts check it.

    Attributes:
        epoch: Larger for every later owner; 0 without ZooKeeper. Source: the czxid of the owner's node.
        ensemble: Identity of the ZooKeeper ensemble that counts the epochs; empty without ZooKeeper.

    Examples:
        >>> Owner() == Owner(epoch=0, ensemble="")  # no ZooKeeper
        True
    """

    epoch: int = 0
    ensemble: str = ""


NO_OWNER = Owner()
