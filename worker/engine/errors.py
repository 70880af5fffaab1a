"""What the engine refuses, each with one message for a person: what happened, where, and what to do."""


class EngineError(Exception):
    """Base of the engine's errors; its text is meant to be shown as it is."""


class ModelLoadError(EngineError):
    """A model or its tokenizer could not be loaded."""


class VocabularyMismatch(EngineError):
    """Target and draft model do not mean the same tokens by the same ids."""


class OutOfMemory(EngineError):
    """Weights and KV cache do not fit in the device's memory."""


class PromptError(EngineError):
    """A prompt cannot be rendered; `code` is what its row in the database says."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
