"""Where torch is imported: running collectives, counting real bytes, recording frameworks. Empty so far."""
