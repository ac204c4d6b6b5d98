"""Expert parallelism: routed experts live on different ranks, tokens travel to them."""
