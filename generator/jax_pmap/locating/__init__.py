"""What finding a target takes: the project's files, the trees of them, and words for what is not there."""
