"""The rules about hand-written parallel code, one file each (`jp1nn.py`)."""
