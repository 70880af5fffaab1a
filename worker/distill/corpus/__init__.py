"""What a drafter is trained on: templates of prompts, with the words and passages that fill them.

Each `NAME.txt` holds what the slot `{NAME}` may become: one item a line, or, in the files whose items have
several lines, blocks between blank lines. `template.txt` holds a block per kind of prompt.
"""
