"""Breaking the system on purpose. Every round of the campaign ends in one check: `invariant.py`."""
