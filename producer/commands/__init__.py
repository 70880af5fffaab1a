"""One module a command: its options and help. They import only click, so that --help stays quick."""
