"""Mistakes in reads: each ends on the driver, in one line that names it."""

from __future__ import annotations

import pytest

from rmq.errors import RedisUnavailableError, UnknownTopicError
from tests.support.spark_mistakes import CLICKS, IMAGE, STOCK, Driver, case_name
from tests.support.spark_mistakes import Mistake as M

READS = [
    M("format rmq has no option topc; did you mean topic\\?", {"topc": "typed-image"}),
    M("format rmq has no option deadline; did you mean deadlineSeconds\\?", {"deadline": "5s"}),
    M("format rmq has no option subscribe; did you mean topic\\?", {"subscribe": "typed-image"}),
    M("no option kafka.bootstrap.servers; did you mean url\\?", {"kafka.bootstrap.servers": "kafka1:9092"}),
    M("has no option x\\\\nurl", {"x\nurl": "1"}),
    M("path is 'typed-mail'; format rmq has no paths: use option topic", {"path": "typed-mail"}),
    M("option `topic` is missing", {"topic": None}),
    M("topic is empty", {"topic": " "}),
    M("topic typed-imag is not registered", {"topic": "typed-imag"}, error=UnknownTopicError),
    M("topic is 'price image'; it must be 1 to 128 characters of A-Z a-z 0-9 . _ -", {"topic": "price image"}),
    M(
        "topic is 'typed-image, typed-mail'; it must be 1 to 128 .*; to read several topics, use option topics",
        {"topic": "typed-image, typed-mail"},
    ),
    M("topics is 'typed-image,,typed-mail'; it must be a list of", {"topics": "typed-image,,typed-mail"}),
    M("topics is 'typed-mail,typed-mail'; .* without duplicates", {"topics": "typed-mail,typed-mail"}),
    M("topics is 'a b'; it must be a list of topic names", {"topics": "a b"}),
    M("topic and topics cannot be used together", {"topic": "typed-mail", "topics": "typed-mail,typed-image"}),
    M("topics and topicPattern cannot be used together", {"topics": "typed-mail", "topicPattern": "typed-.*"}),
    M("topic typed-mial is not registered", {"topics": "typed-image,typed-mial"}, error=UnknownTopicError),
    M("topic typed-clicks is STREAM, and a read of several topics", {"topics": "typed-image,typed-clicks"}),
    M("the read selects 101 topics; the maximum is 100", {"topics": ",".join(f"t{i}" for i in range(101))}),
    M("topicPattern is 'typed-\\('; it must be a regular expression: ", {"topicPattern": "typed-("}),
    M("topicPattern is '\\*-mail'; .* nothing to repeat", {"topicPattern": "*-mail"}),
    M("topicPattern is 'a\\{99999999999\\}'; .* too large", {"topicPattern": "a{99999999999}"}),
    M("topicPattern is empty", {"topicPattern": ""}),
    M("topicPattern 'typed-' matches none of [0-9]+ registered topics", {"topicPattern": "typed-"}),
    M("topicPattern 'mail' matches none", {"topicPattern": "mail"}),
    M("zookeeper is an option of readStream and has no effect on spark.read", {"zookeeper": "zk1:2181"}),
    M("queue is 'died'; it must be one of backlog, inflight, waiting, dead", {"queue": "died"}),
    M("queue is 'in-flight'; it must be one of", {"queue": "in-flight"}),
    M("type is an option of writes and has no effect on a read", {"type": "RANGE_MERGE"}),
    M("slots is an option of writes", {"slots": 8}),
    M("mergeRows is an option of writes", {"mergeRows": 5}),
    M("badRows is an option of writes", {"badRows": "collect", "badRowsPath": "/tmp/bad"}),
    M("maxMessagesPerTrigger is an option of readStream and has no effect", {"maxMessagesPerTrigger": 5}),
    M("maxBytesPerTrigger is an option of readStream", {"maxBytesPerTrigger": "64m"}),
    M("failOnDataLoss is an option of readStream", {"failOnDataLoss": False}),
    M("minPartitions is an option of readStream", {"minPartitions": 4}),
    M("format rmq has no option leaseSeconds: the lease is a setting of the topic", {"leaseSeconds": 60}),
    M("topic typed-image is RANGE_MERGE; option group is for STREAM topics", {"group": "billing"}),
    M("option start is for STREAM topics", {"start": "all"}),
    M("maxPartitions is '0'; it must be a whole number from 1 to 16384", {"maxPartitions": 0}),
    M("maxPartitions is '4.0'; it must be a whole number", {"maxPartitions": 4.0}),
    M("chunkSize is '1k'; it must be a whole number from 1 to 1000", {"chunkSize": "1k"}),
    M("chunkSize is '5000'; it must be a whole number from 1 to 1000", {"chunkSize": 5000}),
    M("snapshot is 'attomic'; it must be one of scan, atomic", {"snapshot": "attomic"}),
    M("atomicLimit is '1e6'; it must be a whole number", {"snapshot": "atomic", "atomicLimit": "1e6"}),
    M("atomicLimit is 5, but snapshot is scan: atomicLimit has an effect", {"atomicLimit": 5}),
    M("pushdown is 'yes'; it must be true or false", {"pushdown": "yes"}),
    M("deadlineSeconds is '1 week'; it must be a duration such as", {"deadlineSeconds": "1 week"}),
    M("deadlineSeconds is '500ms'; it must be from 1 to 86400 seconds: a whole number", {"deadlineSeconds": "500ms"}),
    M("deadlineSeconds is '2d'; it must be from 1 to 86400 seconds: a whole number", {"deadlineSeconds": "2d"}),
    M("deadlineSeconds is '-1'; it must be from 1 to 86400 seconds", {"deadlineSeconds": -1}),
    M("option `url` is missing, and RMQ_URL is not set", {"url": None}),
    M("url is empty", {"url": ""}),
    M("URL 'redis1:6379' has the unknown scheme 'redis1'; did you mean redis:", {"url": "redis1:6379"}),
    M("URL 'http://redis1:6379' has the unknown scheme", {"url": "http://redis1:6379"}),
    M("URL 'redis:/redis1:6379' lacks // after its scheme", {"url": "redis:/redis1:6379"}),
    M("URL 'redis://redis1:99999' has an invalid port", {"url": "redis://redis1:99999"}),
    M("URL 'redis://redis1:6379/x' has an invalid database", {"url": "redis://redis1:6379/x"}),
    M("this Redis URL cannot be used: redis-py has no option ssl", {"url": "redis://redis1:6379?ssl=1"}),
    M("URL 'redis\\+sentinel://s1,s2' names no service", {"url": "redis+sentinel://s1,s2"}),
    M("URL 'redis\\+cluster://n1/3' names a database", {"url": "redis+cluster://n1/3"}),
    M("url is embedded://: each executor would start", {"url": "embedded://"}),
    M("127.0.0.1:1\\b", {"url": "redis://:secret@127.0.0.1:1"}, error=RedisUnavailableError),
    M("/nowhere/redis.sock", {"url": "unix:///nowhere/redis.sock"}, error=RedisUnavailableError),
    M("columns is 'content,,body'; it must be a list of column names", {"columns": "content,,body"}),
    M("columns names boddy, but a read of topic .*; its columns are topic, ", {"columns": "content, boddy"}),
    M("columns is 'body, Body'; .* without duplicates", {"columns": "body, Body"}),
    M("columns names attempt, but a read of topic", {"queue": "dead", "columns": "attempt"}),
    M("columns names value, but a read of topic", {"columns": "value"}),
    M("option columns names content body, but a read", {"columns": "content body"}),
    M("option columns names died, but a read of topic", {"columns": "*, died"}),
    M("option columns names score, but a read", {"queue": "dead", "columns": "content, score"}),
    M("column claim is available with readStream only: a batch read claims no messages", {"columns": "*, claim"}),
    M("columns names body, which schema\\(\\) does not have", {"columns": "content, body"}, "content string"),
    M("a read of queue backlog has no column contents; its usual columns: ", {}, "contents string"),
    M("a read of queue backlog has no column Content; its usual columns: ", {}, "Content string"),
    M("a read of queue dead has no column score; its usual columns: ", {"queue": "dead"}, "content string, score long"),
    M("column slot of a read has type int; it cannot be read as double", {}, "content string, slot double"),
    M("column due of a read has type timestamp; it cannot be read as string", {}, "content string, due string"),
    M("a read of topic typed-image has no column value; its columns are ", {}, "content string, value double"),
    M("a read of topic typed-image has no column id; its columns are ", {}, "content string, id string"),
    M("topic typed-image is RANGE_MERGE; option first is for STREAM topics", {"first": "5-0"}),
    M("option last is for STREAM topics", {"last": "7"}),
    M("option statesOf is for STREAM topics", {"statesOf": "billing"}),
    M("option ranges is for STREAM topics", {"topics": "typed-mail", "ranges": '{"0": ["1-0", "2-0"]}'}),
]

FIELDS = '{"0": ["5-0", "9-0"]}'
LOG_READS = [
    M("first is 'yesterday'; it must be an entry's id, epoch ms, or a time with its zone", {"first": "yesterday"}),
    M("first is '2026-11-20T08:00:00'; .* a time with its zone", {"first": "2026-11-20T08:00:00"}),
    M("first is '5-6-7'; it must be an entry's id", {"first": "5-6-7"}),
    M("last is '2026-13-01T00:00:00Z'; it must be", {"last": "2026-13-01T00:00:00Z"}),
    M("last is '2026-11-20'; .* a time with its zone", {"last": "2026-11-20"}),
    M("first is 9-1 and last is 9-0; the last entry must not precede the first", {"first": "9-1", "last": "9-0"}),
    M("the last entry must not precede the first", {"first": "2026-11-20T09:00:00Z", "last": "2026-11-20T08:00:00Z"}),
    M("ranges is '0: 5-0 to 9-0'; it must be JSON with", {"ranges": "0: 5-0 to 9-0"}),
    M("ranges is '\\[5, 9\\]'; it must be JSON", {"ranges": "[5, 9]"}),
    M("it must be JSON with the ids of the first and last entry of each slot", {"ranges": '{"0": ["5-0"]}'}),
    M("ranges already sets the first and last entry of each slot: remove first", {"ranges": FIELDS, "first": "1-0"}),
    M("ranges names slot 9; the slots of topic typed-clicks are 0 to 3", {"ranges": '{"9": ["5-0", "9-0"]}'}),
    M("ranges has 9-0 to 5-0 for slot 0; the last entry must not precede", {"ranges": '{"0": ["9-0", "5-0"]}'}),
    M("statesOf is 'my group'; it must be 1 to 128 characters of A-Z", {"statesOf": "my group"}),
    M("typed-clicks is STREAM and has no queue dead", {"queue": "dead"}),
    M("typed-clicks is STREAM; option snapshot is for topics of other types", {"snapshot": "atomic"}),
    M("typed-clicks is STREAM; option chunkSize is for", {"chunkSize": 100}),
    M("group and start are options of readStream", {"group": "billing"}),
    M("columns names state, but .*; option statesOf of spark.read adds it", {"columns": "content, state"}),
    M(
        "a read of topic typed-clicks has no column state; .*; option statesOf of spark.read adds it",
        {},
        "content string, state string",
    ),
    M("columns names attempt, but a read of topic", {"columns": "content, attempt"}),
    M("a read of topic typed-clicks has no column priority; its columns are ", {}, "content string, priority long"),
    M(
        "column fields of a read has type map<string,binary>; it cannot be read as map<string,int>",
        {},
        "fields string->int",
    ),
    M("column id of a read has type string; it cannot be read as bigint", {}, "id long"),
]

ZK = {"zookeeper": "zk1:2181"}
STREAMS = [
    M("option maxoffsetspertrigger; did you mean maxMessagesPerTrigger\\?", {"maxOffsetsPerTrigger": 5}),
    M("format rmq has no option leaseSeconds: the lease is a setting of the topic", {"leaseSeconds": 60}),
    M("readStream reads the backlog only; use spark.read for queue dead", {"queue": "dead"}),
    M("snapshot is an option of spark.read and has no effect on readStream", {"snapshot": "atomic"}),
    M("chunkSize is an option of spark.read", {"chunkSize": 100}),
    M("pushdown is an option of spark.read", {"pushdown": True}),
    M("idempotent is an option of writes", {"idempotent": True}),
    M("zookeeper is ''; it must be servers as host:port", {"zookeeper": " "}),
    M("zookeeper is 'zk1'; it must be servers as host:port", {"zookeeper": "zk1"}),
    M("zookeeper is 'zk1:2181;zk2:2181'; it must be servers as host:port", {"zookeeper": "zk1:2181;zk2:2181"}),
    M("zookeeperChroot is 'rmq'; it must be a path such as /rmq", {"zookeeper": "zk1:2181", "zookeeperChroot": "rmq"}),
    M("workerWeight is '0'; it must be a whole number from 1 to 1000", {"zookeeper": "zk1:2181", "workerWeight": 0}),
    M("drainSeconds is 'never'; it must be a duration such as", {"zookeeper": "zk1:2181", "drainSeconds": "never"}),
    M("zookeeperSessionSeconds is '0'; it must be from 1", {"zookeeper": "zk1:2181", "zookeeperSessionSeconds": 0}),
    M("owners is 'zk'; it must be one of redis", {"owners": "zk"}),
    M("zookeeper cannot be combined with owners", {"owners": "redis", "zookeeper": "zk1:2181"}),
    M("ownersSessionSeconds cannot be combined with zookeeper", {"zookeeper": "zk1:2181", "ownersSessionSeconds": 5}),
    M("drainSeconds cannot be used without option owners or zookeeper: set owners to redis", {"drainSeconds": 60}),
    M("workerWeight cannot be used without option owners or zookeeper: set owners to redis", {"workerWeight": 1}),
    M(
        "zookeeperUser, zookeeperCa cannot be used without option owners or zookeeper",
        {"zookeeperUser": "shop", "zookeeperCa": "system"},
    ),
    M("zookeeperUser needs a password: set the environment variable RMQ_", {**ZK, "zookeeperUser": "shop"}),
    M(
        "has no option zookeeperpassword, because Spark would show the password in its plans. Set",
        {**ZK, "zookeeperPassword": "secret"},
    ),
    M("zookeeperCert and zookeeperKey must be given together", {**ZK, "zookeeperCert": "/cert.pem"}),
    M("zookeeperCa is '/nowhere/ca.pem', but there is no such file", {**ZK, "zookeeperCa": "/nowhere/ca.pem"}),
    M("durability is an option of writes", {"durability": "fsync"}),
    M("maxMessagesPerTrigger is '1,000,000'; it must be a whole number from 1", {"maxMessagesPerTrigger": "1,000,000"}),
    M("maxMessagesPerTrigger is '0'; it must be a whole number", {"maxMessagesPerTrigger": 0}),
    M(
        "minMessagesPerTrigger is 10 and maxMessagesPerTrigger is 9; the minimum must not exceed",
        {"minMessagesPerTrigger": 10, "maxMessagesPerTrigger": 9},
    ),
    M("maxTriggerDelay has no effect without minMessagesPerTrigger of 2 or more: set both", {"maxTriggerDelay": "5m"}),
    M(
        "maxTriggerDelay is '15 minutes'; it must be a duration such as",
        {"minMessagesPerTrigger": 5, "maxTriggerDelay": "15 minutes"},
    ),
    M("maxBytesPerTrigger is '64 MB'; it must be a number of bytes such as 64m", {"maxBytesPerTrigger": "64 MB"}),
    M("failOnDataLoss is 'no'; it must be true or false", {"failOnDataLoss": "no"}),
    M("maxReplays is 16; on topic typed-image, whose max_retries is 16, .* 0 to 15", {"maxReplays": 16}),
    M("maxReplays is 20; on topic typed-image", {"topics": "typed-image,typed-mail", "maxReplays": 20}),
    M("maxReplays is '-1'; it must be a whole number from 0 to 999", {"maxReplays": -1}),
    M("minPartitions is 3 and maxPartitions is 2; the minimum must not", {"minPartitions": 3, "maxPartitions": 2}),
    M("topic typed-image is RANGE_MERGE; option group is for STREAM topics", {"group": "billing"}),
    M("option last is for STREAM topics", {"last": "5-0"}),
    M("topic typed-orders is not registered", {"topic": "typed-orders"}, error=UnknownTopicError),
    M("columns is 'trace, trace'; .* without duplicates", {"columns": "trace, trace"}),
    M("columns names slot, which schema\\(\\) does not have", {"columns": "content, slot"}, "content string"),
    M("columns names attempts, but a read of topic", {"columns": "*, attempts"}),
    M("a read of topic typed-image has no column value; its columns are ", {}, "content string, value double"),
    M("a read of topic typed-image has no column id; its columns are ", {}, "content string, id string"),
    M("column slot of a read has type int; it cannot be read as string", {}, "slot string"),
    M("topicPattern '.*-prices' matches none", {"topicPattern": ".*-prices"}),
    M("snapshot is an option of spark.read", {"topics": "typed-image,typed-mail", "snapshot": "atomic"}),
]

G = {"group": "billing"}
LOG_STREAMS = [
    M("topic typed-clicks is STREAM: set the consumer group of the query"),
    M("group is 'my group'; it must be 1 to 128 characters of A-Z a-z 0-9 . _ -", {"group": "my group"}),
    M("start is 'earliest'; it must be new, all, an entry's id, epoch ms, or a time", {**G, "start": "earliest"}),
    M("start is '2026-11-20T08:00:00'; .* a time with its zone", {**G, "start": "2026-11-20T08:00:00"}),
    M("start is 9-1 and last is 9-0; the last entry must not precede the first", {**G, "start": "9-1", "last": "9-0"}),
    M("has no option minMessagesPerTrigger: remove it", {**G, "minMessagesPerTrigger": 5}),
    M("has no option maxReplays", {**G, "maxReplays": 2}),
    M("has no option zookeeper", {**G, "zookeeper": "zk1:2181"}),
    M("has no option failOnLeaseLost", {**G, "failOnLeaseLost": False}),
    M("has no option first", {**G, "first": "5-0"}),
    M("has no option ranges", {**G, "ranges": "{}"}),
    M("has no option leaseSeconds", {**G, "leaseSeconds": 5}),
    M("slots is an option of writes", {**G, "slots": 4}),
    M("has no option statesOf", {**G, "statesOf": "billing"}),
    M("option chunkSize is for topics of other types", {**G, "chunkSize": 5}),
    M("has no option pushdown", {**G, "pushdown": True}),
    M("is STREAM and has no queue inflight", {**G, "queue": "inflight"}),
    M("merge is an option of writes", {**G, "merge": "none"}),
    M("a read of topic typed-clicks has no column state", G, "content string, state string"),
    M("columns names priority, but a read of topic", {**G, "columns": "content, priority"}),
]


@pytest.mark.parametrize("mistake", READS, ids=case_name)
def test_a_batch_read(driver: Driver, mistake: M) -> None:
    driver.refuses(Driver.read, IMAGE, mistake)


@pytest.mark.parametrize("mistake", LOG_READS, ids=case_name)
def test_a_batch_read_of_a_stream(driver: Driver, mistake: M) -> None:
    driver.refuses(Driver.read, CLICKS, mistake)


@pytest.mark.parametrize("mistake", STREAMS, ids=case_name)
def test_a_source(driver: Driver, mistake: M) -> None:
    driver.refuses(Driver.read_stream, IMAGE, mistake)


@pytest.mark.parametrize("mistake", LOG_STREAMS, ids=case_name)
def test_a_source_of_a_stream(driver: Driver, mistake: M) -> None:
    driver.refuses(Driver.read_stream, CLICKS, mistake)


def test_a_schema_in_words_may_have_maps_and_lists(driver: Driver) -> None:
    driver.read(CLICKS, M("", columns="id string, fields string->binary"))
    driver.read_stream(CLICKS, M("", {"group": "billing"}, "id string, fields string->binary"))
    driver.read(STOCK, M("", {"snapshot": "atomic", "atomicLimit": 5}, "content string, value double, merged long"))
    driver.read_stream(IMAGE, M("", {"topics": "typed-image,typed-stock"}, "topic string, value double"))
