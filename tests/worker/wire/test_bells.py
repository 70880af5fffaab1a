"""Bells: a small window of short messages in Redis, best first."""

import json

import pytest
import redis

from worker.wire.app import BELL_TASK, BrokerUnreachable, make_app, queue_name
from worker.wire.bells import WINDOW, ring, waiting


def test_ringing_fills_the_window_and_no_more(valkey_url: str) -> None:
    app = make_app(valkey_url)
    assert ring(app, "tiny", 3) == 3
    assert ring(app, "tiny", 1000) == WINDOW - 3
    assert ring(app, "tiny", 1) == 0
    assert waiting(app, "tiny") == WINDOW


def test_one_pairs_window_is_not_anothers(valkey_url: str) -> None:
    app = make_app(valkey_url)
    ring(app, "tiny", 1000)
    assert ring(app, "other", 2) == 2


def test_a_bell_is_short_json_that_names_the_task_and_the_pair(valkey_url: str) -> None:
    ring(make_app(valkey_url), "tiny", 1, priority=2)
    (message,) = messages(valkey_url, f"specmill:{queue_name('tiny')}")
    assert message["content-type"] == "application/json"
    assert message["headers"]["task"] == BELL_TASK
    assert "tiny" in message["headers"]["kwargsrepr"]


def test_high_priority_is_heard_first(valkey_url: str) -> None:
    app = make_app(valkey_url)
    for priority in (0, 1, 2):
        ring(app, "tiny", 1, priority)
    heard = []
    with app.connection() as connection, connection.channel() as channel:
        while (message := channel.basic_get(queue_name("tiny"), no_ack=True)) is not None:
            heard.append(message.properties["priority"])
    assert heard == [0, 3, 6], "in Redis, 0 is the highest"


def test_a_broker_that_is_away_is_said_and_survived() -> None:
    app = make_app("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(BrokerUnreachable, match="the work is stored") as caught:
        ring(app, "tiny", 1)
    assert "hunter2" not in str(caught.value)


def messages(url: str, queue: str) -> list[dict]:
    with redis.Redis(unix_socket_path=url.removeprefix("redis+socket://")) as client:
        return [json.loads(message) for message in client.lrange(queue, 0, -1)]
