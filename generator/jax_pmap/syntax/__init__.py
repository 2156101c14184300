"""What a file of Python says, without running it: its tree, its scopes, and what its names stand for."""
