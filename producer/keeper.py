"""Keeps the embedded stack for a batch that nobody waits for: `python -m producer.keeper`."""

import sys

from db.settings import DatabaseSettings
from producer.database import open_database
from producer.errors import message_for
from producer.local import LocalStack
from producer.local_run import stopping_on_sigterm
from producer.waiting import wait


def main(batch_id: str, pair: str, pair_fingerprint: str, users: str) -> int:
    settings = DatabaseSettings()
    stack = LocalStack(settings.state_dir.absolute(), int(users))
    stack.adopt(pair, pair_fingerprint, settings.url())
    with stopping_on_sigterm():
        try:
            wait(open_database(settings), batch_id, pair, stack.check)
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            message = message_for(error)
            if message is None:
                raise
            print(f"Error: {message}", file=sys.stderr)
            return 1
        finally:
            stack.detach()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
