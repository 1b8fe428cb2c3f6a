"""The diagrams of the pages: calls in their order, where a message stands, and who talks to Redis.

`python -m docs_site.diagrams` writes these and those of `docs_site.pictures` into docs/pictures/.
"""

from __future__ import annotations

from docs_site.pictures import PICTURES, arrow, both_ways, box, picture, write
from docs_site.sequences import Sequence
from docs_site.staging import ROOT

FOLDER = ROOT / "docs/pictures"

DELIVERY = """
    participant H as Handler
    participant W as Worker
    participant R as Redis
    W->>R: claim, with the acks of earlier deliveries
    R->>R: check epoch, settle, sweep, store to prepare
    R-->>W: messages, claim score
    W->>H: delivery
    loop every third of the lease
        W->>R: extend, with the claim score
        R-->>W: new claim score
    end
    alt the handler returns
        H-->>W: done
        W->>R: ack, with the next claim
        R->>R: same claim score: removed from prepare
    else the handler raises
        H-->>W: error
        W->>R: nack, with the delay
        R->>R: same claim score: to retry, store or dead
    end
"""

REDELIVERY = """
    participant A as Worker A
    participant R as Redis
    participant B as Worker B
    A->>R: claim
    R->>R: store to prepare
    alt the reply is lost
        R--xA: messages
        Note over A: A never repeats the claim
    else A freezes
        R-->>A: messages, claim score
        Note over A: the lease is not renewed
    end
    Note over R: the lease ends
    B->>R: claim
    R->>R: sweep: prepare to store, one retry used up
    R-->>B: messages, new claim score
    opt A resumes
        A->>R: ack, with its claim score
        R-->>A: stale: nothing was changed
    end
"""

FOLD_BACK = """
    participant S as Sender
    participant R as Redis
    participant W as Worker
    S->>R: send -3, send -1
    R-->>W: delivery of -4, merged 2
    S->>R: send 10
    Note over R: in flight -4, in the backlog 10
    alt the handler returns
        W->>R: ack
        R-->>W: delivery of 10, merged 1
    else it raises, or its lease ends
        W->>R: nack
        Note over R: -4 folds into the backlog
        R-->>W: delivery of 6, merged 3
    end
"""

EPOCHS = """
    participant A as Worker A
    participant Z as ZooKeeper
    participant B as Worker B
    participant R as Redis
    A->>Z: create the slot's owner node
    Z-->>A: czxid 17 is the epoch
    A->>R: claim with epoch 17
    R->>R: meta stores epoch 17
    Note over A: A freezes, its session ends
    Z->>Z: deletes the owner node of A
    B->>Z: write the new assignment, as leader
    B->>Z: create the slot's owner node
    Z-->>B: czxid 23 is the epoch
    B->>R: claim nothing, with epoch 23
    R->>R: meta stores epoch 23
    Note over B: B waits until nothing of A is in flight
    B->>R: claim with epoch 23
    R-->>B: messages
    Note over A: A resumes
    A->>R: ack with epoch 17
    R-->>A: FencedError, nothing was written
"""


def _state(x: float, y: float, name: str, words: str) -> list[str]:
    return [
        box(x, y, 120, 52),
        write(x + 60, y + 22, name, "head", "middle"),
        write(x + 60, y + 41, words, "soft", "middle"),
    ]


def lifecycle() -> str:
    """Draw where a message stands from its send to its ack or its death."""
    return picture(
        "The states of a message: send puts it into store, claim into prepare, and ack takes it out",
        352,
        *_state(110, 86, "store", "backlog"),
        *_state(400, 86, "prepare", "in flight"),
        *_state(110, 262, "retry", "waiting"),
        *_state(400, 262, "dead", "dead letters"),
        arrow((20, 112), (104, 112)), write(56, 104, "send", "", "middle"),
        arrow((230, 100), (394, 100)), write(312, 92, "claim", "", "middle"),
        arrow((400, 124), (236, 124)), write(318, 142, "nack at once,", "soft", "middle"),
        write(318, 159, "release, lease expired", "soft", "middle"),
        arrow((520, 112), (604, 112)), write(560, 104, "ack", "", "middle"),
        arrow((430, 138), (430, 200), (200, 200), (200, 256)), write(318, 193, "nack with a delay", "soft", "middle"),
        arrow((490, 138), (490, 256)), write(500, 196, "bury,", "soft"), write(500, 213, "no retries left", "soft"),
        arrow((140, 262), (140, 144)), write(130, 200, "delay", "soft", "end"), write(130, 217, "ends", "soft", "end"),
        arrow((215, 138), (215, 232), (440, 232), (440, 256)), write(330, 226, "time to live ends", "soft", "middle"),
        arrow((460, 314), (460, 336), (62, 336), (62, 128), (104, 128)), write(312, 330, "redrive", "", "middle"),
        write(20, 34, "The states of a message", "head"),
        width=624,
    )  # fmt: skip


def roles() -> str:
    """Draw who talks to Redis, and with what."""
    parts = [
        write(16, 34, "How the parts use Redis", "head"),
        box(258, 58, 164, 258, "band"),
        write(340, 82, "Redis", "head", "middle"),
        write(340, 100, "one server, Sentinel", "soft", "middle"),
        write(340, 117, "or Cluster", "soft", "middle"),
        box(272, 136, 136, 110),
        write(340, 164, "slots of a topic", "head", "middle"),
        write(340, 188, "store, prepare,", "soft", "middle"),
        write(340, 206, "retry, dead", "soft", "middle"),
    ]
    left = (("Producer", "in your program", "send"), ("Spark", "write, writeStream", "send"))
    for number, (name, words, verb) in enumerate(left):
        y = 66 + 92 * number
        parts += [
            box(16, y, 150, 56),
            write(91, y + 24, name, "head", "middle"),
            write(91, y + 43, words, "soft", "middle"),
        ]
        parts += [arrow((168, y + 28), (256, y + 28)), write(212, y + 20, verb, "soft", "middle")]
    y = 250
    parts += [box(16, y, 150, 56), write(91, y + 24, "Operators", "head", "middle")]
    parts += [write(91, y + 43, "rmq, dashboard", "soft", "middle"), *both_ways(168, 256, y + 28)]
    parts += [write(212, y + 20, "manage", "soft", "middle")]
    right = (
        ("Worker", "listeners, your handlers", "claim, extend, ack, nack", 66),
        ("Spark", "read, readStream", "read, ack", 250),
    )
    for name, words, verb, y in right:
        parts += [
            box(560, y, 184, 56),
            write(652, y + 24, name, "head", "middle"),
            write(652, y + 43, words, "soft", "middle"),
        ]
        parts += [*both_ways(424, 558, y + 28)]
        first, _, second = verb.partition("extend, ")
        parts += [write(491, y + 20, f"{first}extend," if second else verb, "soft", "middle")]
        parts += [write(491, y + 46, second, "soft", "middle")]
    parts += [box(560, 164, 184, 44), write(652, 191, "ZooKeeper, optional", "head", "middle")]
    parts += [
        arrow((640, 164), (640, 128)),
        arrow((664, 122), (664, 158)),
        write(676, 140, "owners,", "soft"),
        write(676, 156, "epochs", "soft"),
    ]
    return picture(
        "Producers send into slots in Redis; workers claim from them, and operators view and manage", 332, *parts
    )


def diagrams() -> dict[str, str]:
    """Return the text of all SVG files in docs/pictures, by their names."""
    return {
        **{name: draw() for name, draw in PICTURES.items()},
        "delivery": Sequence(DELIVERY).draw("A delivery: claim, extend, then ack or nack with the claim score"),
        "redelivery": Sequence(REDELIVERY).draw("A worker lost the reply or freezes: another one gets the message"),
        "fold_back": Sequence(FOLD_BACK).draw("A failed delivery folds back into the new message"),
        "epochs": Sequence(EPOCHS).draw("A worker that resumes after its slot has a new owner is refused"),
        "lifecycle": lifecycle(),
        "roles": roles(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in diagrams().items():
        (FOLDER / f"{name}.svg").write_text(text, "utf-8")
