"""Generated words of `autothrottle.v1`: never edit these files, run `make proto`."""
