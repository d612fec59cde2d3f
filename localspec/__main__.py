"""`python -m localspec`."""

from localspec.cli.process import main

if __name__ == "__main__":
    main()
