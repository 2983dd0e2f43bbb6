"""``python -m client.cli``: the command line without its script."""

from client.cli.main import main

main()
