"""What one command has proved, the others accept: `make sweep`."""
