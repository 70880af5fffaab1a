"""`worker bench`: a pair's drafters and its planner beside plain decoding, on a file of prompts."""
