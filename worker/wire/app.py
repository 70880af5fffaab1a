"""The Celery app: Redis as a doorbell, with the settings that were measured to survive its faults."""

import re
from typing import Any
from urllib.parse import urlsplit

import redis
from celery import Celery

BELL_TASK = "specmill.bell"
KEY_PREFIX = "specmill:"

SIX_HOURS = 6 * 3600
SCHEMES = ("redis", "rediss", "redis+socket")

# In Redis 0 is the highest priority and what lies above 9 is clamped; people say low, normal, high (0, 1, 2).
REDIS_PRIORITY = {0: 6, 1: 3, 2: 0}

SETTINGS: dict[str, Any] = {
    # Late acknowledgement is a faster retry path, nothing more: the database decides who works on what.
    "task_acks_late": True,
    "task_ignore_result": True,
    "task_track_started": False,
    "task_publish_retry": False,  # a bell is a hint: the reaper rings again
    "result_backend": None,
    # Messages hold ids, never prompts.
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "task_compression": None,
    # Solo blocks the event loop during a task; prefork forks after CUDA.
    "worker_pool": "threads",
    # With any prefetch a worker goes catatonic after a Redis outage: credits leak when an ack raises.
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 0,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_soft_shutdown_timeout": 0,  # on threads it raises
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    "broker_connection_timeout": 5,
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,  # the default gives up after 100 tries
    "broker_channel_error_retry": True,  # survives READONLY and OOM replies
    "broker_transport_options": {
        "visibility_timeout": SIX_HOURS,  # recovery speed comes from the database lease, not from this
        "socket_timeout": 15,  # without it a worker sat on a dead connection for as long as it was watched
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "queue_order_strategy": "priority",
        "priority_steps": [0, 3, 6, 9],
        "global_keyprefix": KEY_PREFIX,
    },
    "enable_utc": True,
    "timezone": "UTC",
}


class BrokerError(Exception):
    """The broker cannot be used; the message says why and what to do."""


class BrokerUnreachable(BrokerError):
    """Nobody answers there."""


def queue_name(pair: str) -> str:
    return f"pair.{pair}"


def make_app(broker_url: str) -> Celery:
    """An app on this broker. It is never made the process-wide current app: two may live side by side."""
    app = Celery("specmill", broker=_verifying(broker_url), set_as_current=False)
    app.conf.update(SETTINGS)
    return app


def _verifying(url: str) -> str:
    """With TLS the server's certificate is verified; kombu's own default is to accept any."""
    if urlsplit(url).scheme != "rediss" or "ssl_cert_reqs" in url:
        return url
    return f"{url}{'&' if urlsplit(url).query else '?'}ssl_cert_reqs=required"


def describe_broker(url: str) -> str:
    """The URL with its passwords hidden, for messages and logs; also where one holds an unescaped / or @."""
    hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", hidden)


def check_broker(url: str) -> list[str]:
    """Refuse a broker that cannot work; return warnings about one that can but should not be so."""
    shown = describe_broker(url)
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES or ";" in url:
        raise BrokerError(
            f"broker {shown}: only a single Redis or Valkey server is supported, "
            "as redis://, rediss:// or redis+socket://; set SPECMILL_BROKER_URL to one."
        )
    client = None
    try:
        # redis-py names a unix socket's scheme differently from kombu.
        client = redis.Redis.from_url(
            url.replace("redis+socket://", "unix://", 1),
            socket_timeout=5,
            socket_connect_timeout=5,
            retry=None,
        )
        info: Any = client.info()
    except redis.AuthenticationError as error:
        raise BrokerUnreachable(
            f"broker {shown} refused the login ({error}); check SPECMILL_BROKER_URL."
        ) from error
    except ValueError:  # its text would quote a part of the URL, which may be one of the password
        raise BrokerUnreachable(
            f"broker {shown} cannot be read as a URL; percent-encode what is special in its password, "
            "and correct SPECMILL_BROKER_URL."
        ) from None
    except (redis.RedisError, OSError) as error:
        raise BrokerUnreachable(
            f"broker {shown} is unreachable ({error}); "
            "start the Redis or Valkey server, or correct SPECMILL_BROKER_URL."
        ) from error
    finally:
        if client is not None:
            client.close()
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled"):
        raise BrokerError(f"broker {shown} is a Redis Cluster, which is not supported; use a single server.")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return [
            f"broker {shown} has maxmemory-policy {policy} and may drop bells when its memory is full; "
            "set it to noeviction."
        ]
    return []
