"""The truth: tables, migrations, the queue, and the questions people ask of them."""
