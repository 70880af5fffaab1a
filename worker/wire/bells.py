"""Ringing: messages that say "there may be work for this pair". Losing or repeating one changes nothing."""

from typing import Any, cast

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis import RedisError

from worker.wire.app import BELL_TASK, REDIS_PRIORITY, BrokerUnreachable, describe_broker, queue_name

# Bells of one pair that Redis holds, at most, unless the caller knows the fleet: about twice its slots.
WINDOW = 32


def ring(app: Celery, pair: str, count: int, priority: int = 1, window: int = WINDOW) -> int:
    """Publish up to `count` bells, so that no more than `window` wait; return how many were rung.

    Call it after the commit that made the work visible. Priority is a batch's: 0 low, 1 normal, 2 high.
    """
    queue = queue_name(pair)
    try:
        with app.producer_or_acquire() as pooled:
            producer: Any = pooled
            count = min(count, window - _waiting(producer.channel, queue))
            if count <= 0:
                return 0
            with producer.batch(max_size=count):
                for _ in range(count):
                    app.send_task(
                        BELL_TASK,
                        kwargs={"pair": pair},
                        queue=queue,
                        priority=REDIS_PRIORITY[priority],
                        producer=producer,
                        ignore_result=True,
                    )
            return count
    except (KombuError, OperationalError, RedisError, OSError) as error:
        shown = describe_broker(cast(str, app.conf.broker_url))
        raise BrokerUnreachable(
            f"broker {shown} took no bell ({error}); the work is stored, and is rung for again later."
        ) from error


def waiting(app: Celery, pair: str) -> int:
    """Bells of a pair that nobody has heard yet."""
    with app.producer_or_acquire() as producer:
        return _waiting(producer.channel, queue_name(pair))


def _waiting(channel: Any, queue: str) -> int:
    # Not passive: kombu would ask EXISTS without the key prefix, and never find the queue.
    return channel.queue_declare(queue=queue).message_count
