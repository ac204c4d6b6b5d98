"""Context parallelism: every rank holds a part of each sequence."""
