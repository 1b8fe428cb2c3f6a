"""A ZooKeeper without I/O: what the coordinator's rounds ask of it, and no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from rmq._ownership.requests import Children, Create, Get, Look, OwnNodes, Put, Release, Reply, Request, Sync
from rmq._ownership.values import OWNERS, TOPICS, Stat


class SimulatedZooKeeper:
    """Nodes, sessions and watches; time comes with each call.

    Args:
        session_s: How long a session lives without a contact.
    """

    def __init__(self, session_s: float) -> None:
        self.session_s = session_s
        self.zxid = 0
        self.nodes: dict[str, tuple[bytes, Stat]] = {}
        self.children: defaultdict[str, set[str]] = defaultdict(set)
        self.touched: dict[int, float] = {}
        self.watches: defaultdict[str, dict[Callable[[], None], None]] = defaultdict(dict)  # in their order
        self.deleted: set[tuple[str, int]] = set()  # by hand, and what went wrong because of that
        for path in ("/workers", TOPICS, OWNERS):
            self.create(path, b"", 0)

    def expire(self, now: float) -> None:
        for session, touched in list(self.touched.items()):
            if now >= touched + self.session_s:
                del self.touched[session]
                for path in [path for path, (_, stat) in self.nodes.items() if stat.session == session]:
                    self.delete(path)

    def connect(self, session: int | None, now: float) -> int:
        self.expire(now)
        if session not in self.touched:
            self.zxid += 1
            session = self.zxid
        assert session is not None
        self.touched[session] = now
        return session

    def create(self, path: str, data: bytes, session: int) -> Stat | None:
        parent, _, name = path.rpartition("/")
        if path in self.nodes or (parent and parent not in self.nodes):
            return None
        self.zxid += 1
        stat = Stat(self.zxid, 0, session, self.zxid)
        self.nodes[path] = (data, stat)
        self.children[parent].add(name)
        self.fire(path, parent)
        return stat

    def delete(self, path: str) -> None:
        del self.nodes[path]
        parent, _, name = path.rpartition("/")
        self.children[parent].discard(name)
        self.zxid += 1
        self.fire(path, parent)

    def fire(self, *paths: str) -> None:
        for path in paths:
            for wake in self.watches.pop(path, {}):
                wake()

    def carry_out(self, request: Request, session: int, wake: Callable[[], None]) -> Reply:  # noqa: C901
        match request:
            case Sync():
                return True
            case Look(path, watch) | Get(path, watch) | Children(path, watch):
                if watch:
                    self.watches[path][wake] = None
                if type(request) is Children:
                    names = sorted(self.children[path])
                    if request.own:
                        own = [name for name in names if self.nodes[f"{path}/{name}"][1].session == session]
                        return OwnNodes(len(names), own) if path in self.nodes else None
                    return names if path in self.nodes else None
                node = self.nodes.get(path)
                return node if type(request) is Get or node is None else node[1]
            case Create(path, data, ephemeral):
                return self.create(path, data, session if ephemeral else 0)
            case Put(path, data, version):
                node = self.nodes.get(path)
                if node is None or node[1].version != version:
                    return False
                self.zxid += 1
                self.nodes[path] = (data, Stat(node[1].czxid, version + 1, node[1].session, self.zxid))
                self.fire(path)
                return True
            case Release(path, guard, version):
                if guard not in self.nodes:
                    return False
                if path in self.nodes and version not in (-1, self.nodes[path][1].version):
                    return False
                if path in self.nodes:
                    stat = self.nodes[path][1]
                    if stat.session not in (session, 0):  # only where ours was deleted by hand, and another one made
                        assert any(deleted == path for deleted, _ in self.deleted)
                        self.deleted.add((path, stat.czxid))
                    self.delete(path)
                return True
