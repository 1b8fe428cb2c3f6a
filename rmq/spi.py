"""The names on which RMQ's own dashboard, metrics, spans and adapters stand, beside those of `rmq` and `rmq.aio`.

They import nothing else of the core, and neither does the command line but for the modules that the contract
`public-and-spi` in `pyproject.toml` lists: `make layers` holds them to it. So the core can change behind these names,
and an extension of your own can be written with them. They are outside the promise of the first release: a release may
change them, and its changelog says so.

Each name is documented where it is defined. In short:

Texts for terminals and pages, safe with hostile payloads, which they escape:
    `shown` (a payload or text on one line, cut), `safe_lines` (a text of several lines), `counted` (a number with its
    noun), `dashed` (the name of a setting), `when` (a time), `from_now` (a time relative to another), `span` and
    `milliseconds` (lengths of time), `json_payload` (a payload in JSON, which is exact).
Texts about merges:
    `merge_name` and `merge_words` (the settings of a topic); of a message that combines sends `sends_words` (their
    number), `age_words` (their ages), `count_words` and `items_words` (its items), `value_words` and `labelled_value`
    (its value).
Topics, messages and their states:
    `Message`, `PayloadT`, `AnyPlace` (the states of a message), `TOTALS` (the counters of a slot), `id_key` (an id of a
    stream as numbers that order it). `checked_slots`, `check_group` and `check_async` raise `InvalidValueError` for
    slots that a topic does not have, for a group that does not fit the topic's type, and for handlers that are not
    coroutine functions. `written_context` and `read_context` (headers as a trace context of a message, which has up to
    `MOST_CONTEXT` characters).
Figures of a minute, as `History` records them:
    `minute_of`, `minute_of_stream`, `sum_of`.
What needs attention:
    `findings_of` (the `Finding`s, worst first, in a `Reading`, which has a `TopicReading` of each topic), `all_well`
    (the sentence for none), `worst_first` (the topics in the order of their findings). `read_all` reads everything
    through a client, `read_topic`, `read_servers`, `with_trouble` and `read_or` a part; `rates_between` compares two
    readings. `examine` yields the `Check`s of a deployment.
Requests to web servers:
    `allows_host`, `is_loopback` and `network_of`, which keep pages of other sites away from a server on this machine.
    `HttpServer` serves an `Application` on a port that `serve_on` finds, `serve_health` the health of a process.
Processes:
    `chosen_url` (the URL of Redis that a program or its environment names), `URL_VARIABLE` (the name of the environment
    variable), `listener_decorator` and `scheduled_decorator` (make a function a handler), `run_reloading` and
    `RELOADED` (restart at a change of a file), `end_with_parent`, `until_signal` (an event that SIGTERM and SIGINT
    set), `monotonic_s` (a clock that never jumps), `login` and `encryption` (access to ZooKeeper by options and
    environment), `read_secret` (a password in a file).
"""

from rmq._admin.history import minute_of, minute_of_stream, sum_of
from rmq._io.secret_files import read_secret
from rmq._listening.listener import HandlerT, listener_decorator, scheduled_decorator
from rmq._model.display import counted, dashed, from_now, json_payload, milliseconds, safe_lines, shown, span, when
from rmq._model.entries import check_group, id_key
from rmq._model.figures import TOTALS
from rmq._model.handlers import check_async
from rmq._model.hosts import allows_host, is_loopback, network_of
from rmq._model.merge_words import (
    age_words,
    count_words,
    items_words,
    labelled_value,
    merge_name,
    merge_words,
    sends_words,
    value_words,
)
from rmq._model.messages import Message
from rmq._model.records import MOST_CONTEXT, read_context, written_context
from rmq._model.times import monotonic_s
from rmq._model.topics import checked_slots
from rmq._model.typed import PayloadT
from rmq._model.whereabouts import AnyPlace
from rmq._ownership.logins import encryption, login
from rmq._processes.http_server import Application, HttpServer, serve_health, serve_on
from rmq._processes.reloading import RELOADED, run_reloading
from rmq._processes.signals import until_signal
from rmq._processes.supervisor import end_with_parent
from rmq._status.doctor import Check, examine
from rmq._status.findings import Finding, Reading, TopicReading, all_well, findings_of, worst_first
from rmq._status.reading import rates_between, read_all, read_or, read_servers, read_topic, with_trouble
from rmq._transport.urls import URL_VARIABLE, chosen_url

# fmt: off
__all__ = [
    "MOST_CONTEXT", "RELOADED", "TOTALS", "URL_VARIABLE", "AnyPlace", "Application", "Check", "Finding", "HandlerT",
    "HttpServer", "Message", "PayloadT", "Reading", "TopicReading", "age_words", "all_well", "allows_host",
    "check_async", "check_group", "checked_slots", "chosen_url", "count_words", "counted", "dashed", "encryption",
    "end_with_parent", "examine", "findings_of", "from_now", "id_key", "is_loopback", "items_words", "json_payload",
    "labelled_value", "listener_decorator", "login", "merge_name", "merge_words", "milliseconds", "minute_of",
    "minute_of_stream", "monotonic_s", "network_of", "rates_between", "read_all", "read_context", "read_or",
    "read_secret", "read_servers", "read_topic", "run_reloading", "safe_lines", "scheduled_decorator", "sends_words",
    "serve_health", "serve_on", "shown", "span", "sum_of", "until_signal", "value_words", "when", "with_trouble",
    "worst_first", "written_context",
]
# fmt: on
