"""A cure for kombu 5.7's Redis transport, where a lost connection ends Celery's worker for good.

Both of its faults touch a channel that was closed, and raise AttributeError where Celery expects others.
"""

from kombu.transport import redis


class QoS(redis.QoS):
    """What is unacknowledged when the connection is lost stays so: a bell that rings twice is cheap."""

    restore_at_shutdown = False  # closing the lost channel twice would restore twice, without a client

    def ack(self, delivery_tag: str) -> None:
        """A task that ended after its connection was lost must not acknowledge on the closed channel."""
        if not self.channel.closed:
            super().ack(delivery_tag)


def install() -> None:
    redis.Channel.QoS = QoS
