"""``python -m erfscope`` runs the command line."""

from erfscope.cli.main import main

if __name__ == "__main__":
    main()
