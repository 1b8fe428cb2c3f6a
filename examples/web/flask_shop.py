"""A Flask application that sends messages, and a worker that handles them in the application's context.

Run: `pip install 'rmq[flask]'`, then with RMQ_URL set `flask --app flask_shop run` and, in another terminal,
`flask --app flask_shop rmq-worker`; then `curl -X POST localhost:5000/items/mug`.
"""

from pathlib import Path

from flask import Flask, current_app

from rmq import Delivery, RangeMergeMessage, Topic, TopicType
from rmq.adapters.flask import Rmq

PRICE = Topic("price-image", TopicType.RANGE_MERGE, slots=8)

app = Flask(__name__)
app.config["PICTURES"] = Path("pictures")
rmq = Rmq(app)  # or rmq = Rmq(), and rmq.init_app(app) in create_app()


@app.post("/items/<item>")
def price_changed(item: str) -> dict[str, bool]:
    """Request a new picture of an item."""
    result = rmq.producer(PRICE).send(RangeMergeMessage(item, "500ms"))
    return {"merged": result.merged == 1}


@rmq.listener(PRICE, threads=4)
def draw(delivery: Delivery) -> None:
    """Draw the picture of an item."""
    folder: Path = current_app.config["PICTURES"]
    folder.mkdir(exist_ok=True)
    (folder / f"{delivery.text}.txt").write_text("a picture")


@app.get("/stats")
def stats() -> dict[str, int]:
    """Return the number of pictures to draw, and of those drawn."""
    now = rmq.client().inspect(PRICE).stats()
    return {"backlog": now.backlog, "drawn": now.total("acked")}
