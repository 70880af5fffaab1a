"""What producer and worker must agree on: the Celery app, bells, settings and pair declarations. No torch."""
