"""Data parallelism: ddp, zero1, zero2, zero3, fsdp and its hybrid with replicas."""
