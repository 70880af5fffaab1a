"""The first tables, and the counts of a batch as a view."""

import sqlalchemy as sa
from alembic import op

from db.types import BigIntegerKey, Json, JsonAsGiven, UtcDateTime

revision = "0001"
down_revision = None

Double: sa.Double[float] = sa.Double()

BATCH_COUNTS = """
CREATE VIEW batch_counts AS
SELECT
    batches.id AS batch_id,
    count(prompts.id) AS total,
    count(prompts.id) FILTER (WHERE prompts.status = 'pending') AS pending,
    count(prompts.id) FILTER (WHERE prompts.status = 'running') AS running,
    count(prompts.id) FILTER (WHERE prompts.status = 'succeeded') AS succeeded,
    count(prompts.id) FILTER (WHERE prompts.status = 'failed') AS failed,
    count(prompts.id) FILTER (WHERE prompts.status = 'cancelled') AS cancelled,
    count(prompts.id) FILTER (WHERE prompts.status = 'expired') AS expired
FROM batches
LEFT JOIN prompts ON prompts.batch_id = batches.id
GROUP BY batches.id
"""


def upgrade() -> None:
    op.create_table(
        "baselines",
        sa.Column("id", BigIntegerKey, autoincrement=True, nullable=False),
        sa.Column("pair", sa.Text(), nullable=False),
        sa.Column("pair_fingerprint", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("rows_in_flight", sa.Integer(), nullable=False),
        sa.Column("tokens_per_second", Double, nullable=False),
        sa.Column("measured_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_baselines"),
        sa.UniqueConstraint(
            "pair_fingerprint",
            "device_name",
            "rows_in_flight",
            name="uq_baselines_pair_fingerprint_device_name_rows_in_flight",
        ),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("source_key", sa.Text(), nullable=False),
        sa.Column("pair", sa.Text(), nullable=False),
        sa.Column("pair_fingerprint", sa.Text(), nullable=False),
        sa.Column("sampling", Json, nullable=False),
        sa.Column("sampling_resolved", Json, nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("metadata", Json, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("input_errors", Json, nullable=False),
        sa.Column("num_input_errors", sa.Integer(), nullable=False),
        sa.Column("speedup_vs_baseline", Double, nullable=True),
        sa.Column("speedup_low", Double, nullable=True),
        sa.Column("speedup_high", Double, nullable=True),
        sa.Column("deadline", UtcDateTime, nullable=True),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("sealed_at", UtcDateTime, nullable=True),
        sa.Column("paused_at", UtcDateTime, nullable=True),
        sa.Column("in_progress_at", UtcDateTime, nullable=True),
        sa.Column("finalizing_at", UtcDateTime, nullable=True),
        sa.Column("completed_at", UtcDateTime, nullable=True),
        sa.Column("failed_at", UtcDateTime, nullable=True),
        sa.Column("expired_at", UtcDateTime, nullable=True),
        sa.Column("cancelling_at", UtcDateTime, nullable=True),
        sa.Column("cancelled_at", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_pair_status", "batches", ["pair", "status"])
    op.create_index("ix_batches_source_key", "batches", ["source_key"])
    op.create_table(
        "pairs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("config", Json, nullable=False),
        sa.Column("generation_defaults", Json, nullable=False),
        sa.Column("context_limit", sa.Integer(), nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_pairs"),
    )
    op.create_table(
        "reaper_ticks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("ticked_at", UtcDateTime, nullable=False),
        sa.Column("quiet_until", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_reaper_ticks"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.Column("pair", sa.Text(), nullable=False),
        sa.Column("pair_fingerprint", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("max_rows", sa.Integer(), nullable=False),
        sa.Column("versions", Json, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("activity", Json, nullable=False),
        sa.Column("started_at", UtcDateTime, nullable=False),
        sa.Column("heartbeat_at", UtcDateTime, nullable=False),
        sa.Column("stopped_at", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_index("ix_workers_heartbeat_at", "workers", ["heartbeat_at"])
    op.create_table(
        "comparisons",
        sa.Column("id", BigIntegerKey, autoincrement=True, nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("rows_in_flight", sa.Integer(), nullable=False),
        sa.Column("batches_in_flight", sa.Integer(), nullable=False),
        sa.Column("plain_steps", sa.Integer(), nullable=False),
        sa.Column("plain_tokens", sa.Integer(), nullable=False),
        sa.Column("plain_seconds", Double, nullable=False),
        sa.Column("speculative_steps", sa.Integer(), nullable=False),
        sa.Column("speculative_tokens", sa.Integer(), nullable=False),
        sa.Column("speculative_seconds", Double, nullable=False),
        sa.Column("measured_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_comparisons_batch_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_comparisons_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
        sa.UniqueConstraint(
            "batch_id",
            "worker_id",
            "block",
            "rows_in_flight",
            name="uq_comparisons_batch_id_worker_id_block_rows_in_flight",
        ),
    )
    op.create_table(
        "prompts",
        sa.Column("id", BigIntegerKey, autoincrement=True, nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("source_path", sa.Text(), nullable=True),
        sa.Column("source_line", sa.Integer(), nullable=True),
        sa.Column("messages", JsonAsGiven, nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("chat_template_kwargs", JsonAsGiven, nullable=True),
        sa.Column("sampling", Json, nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("metadata", Json, nullable=True),
        sa.Column("content_key", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", UtcDateTime, nullable=True),
        sa.Column("rung_at", UtcDateTime, nullable=True),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("claimed_at", UtcDateTime, nullable=True),
        sa.Column("ended_at", UtcDateTime, nullable=True),
        sa.Column("reused_from", BigIntegerKey, nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("rendered", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_prompts_batch_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["reused_from"], ["prompts.id"], name="fk_prompts_reused_from"),
        sa.PrimaryKeyConstraint("id", name="pk_prompts"),
        sa.UniqueConstraint("batch_id", "custom_id", name="uq_prompts_batch_id_custom_id"),
    )
    op.create_index("ix_prompts_batch_id_id", "prompts", ["batch_id", "id"])
    op.create_index("ix_prompts_batch_id_status_position", "prompts", ["batch_id", "status", "position"])
    op.create_index(
        "ix_prompts_reused_from",
        "prompts",
        ["reused_from"],
        sqlite_where=sa.text("reused_from IS NOT NULL"),
        postgresql_where=sa.text("reused_from IS NOT NULL"),
    )
    suspects = sa.text("status = 'pending' AND crashes >= 2")
    op.create_index(
        "ix_prompts_suspects",
        "prompts",
        ["batch_id"],
        sqlite_where=suspects,
        postgresql_where=suspects,
    )
    op.create_index(
        "ix_prompts_running",
        "prompts",
        ["lease_until"],
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "samples",
        sa.Column("id", BigIntegerKey, autoincrement=True, nullable=False),
        sa.Column("prompt_id", BigIntegerKey, nullable=False),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("queue_seconds", Double, nullable=False),
        sa.Column("prefill_seconds", Double, nullable=False),
        sa.Column("first_token_seconds", Double, nullable=False),
        sa.Column("decode_seconds", Double, nullable=False),
        sa.Column("total_seconds", Double, nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("spec_disabled_reason", sa.Text(), nullable=True),
        sa.Column("num_steps", sa.Integer(), nullable=False),
        sa.Column("num_spec_steps", sa.Integer(), nullable=False),
        sa.Column("num_draft_tokens", sa.Integer(), nullable=True),
        sa.Column("num_accepted_draft_tokens", sa.Integer(), nullable=True),
        sa.Column("acceptance_histogram", Json, nullable=True),
        sa.Column("mean_acceptance_length", Double, nullable=True),
        sa.Column("draft_acceptance_rate", Double, nullable=True),
        sa.Column("rows_in_flight", Double, nullable=False),
        sa.Column("quality_flag", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("logprobs", Json, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(
            ["prompt_id"], ["prompts.id"], name="fk_samples_prompt_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_samples_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_samples"),
        sa.UniqueConstraint("prompt_id", "sample_index", name="uq_samples_prompt_id_sample_index"),
    )
    op.execute(BATCH_COUNTS)
    if op.get_bind().dialect.name == "postgresql":
        # A queue's rows change status thrice in a while: the default would wait for a fifth of the table.
        op.execute("ALTER TABLE prompts SET (autovacuum_vacuum_scale_factor = 0.02)")
    # The reaper finds its one row there; so long ago means that everyone was away.
    op.execute("INSERT INTO reaper_ticks (id, ticked_at) VALUES (1, '2000-01-01 00:00:00.000000')")
