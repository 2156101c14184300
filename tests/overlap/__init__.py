"""Chooses the tests that `make test` leaves to `make thorough`: those whose lines others run as well."""
