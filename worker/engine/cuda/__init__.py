"""The engine on an NVIDIA GPU: keys and values in pages, attention that reads them, captured decoding."""
