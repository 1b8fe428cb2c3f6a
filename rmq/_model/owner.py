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

    token_base = 0

    @property
    def fencing_token(self) -> int | None:
        """See `Delivery.fencing_token`."""
        return self.token_base + self.epoch if self.epoch else None

    def moved(self, token_base: int) -> Owner:
        """Return this owner with tokens that start from there; itself for 0."""
        return MovedOwner.of(self, token_base) if token_base else self


class MovedOwner(Owner):
    """The owner of a slot that was moved from another ensemble; equal to the same `Owner`.

    Attributes:
        token_base: The highest token that was given out before.
    """

    @classmethod
    def of(cls, owner: Owner, token_base: int) -> MovedOwner:
        """Return an owner whose tokens start from there."""
        moved = cls(*owner)
        moved.token_base = token_base
        return moved


NO_OWNER = Owner()
