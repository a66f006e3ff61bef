"""`python -m puidrec` is the command `puid`."""

from puidrec.cli.main import run

if __name__ == "__main__":
    run()
