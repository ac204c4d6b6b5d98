"""Pipeline parallelism: every stage holds some of the blocks."""
