"""What a person drives: inputs, submission, progress, reports and exports. Never imports torch."""
