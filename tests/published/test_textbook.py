"""Formulas as papers print them, over a range of sizes: expected numbers are computed here from the printed formula.

Left out because they are not the textbook's: FSDP1's F - 1 backward gathers, Megatron's 6 A backward with sequence
parallelism (USP: 10 b s h, AICB the same), DeepSpeed's all-reduce in ZeRO-1 and -2, torch's padding; they belong to
framework profiles. The memory tables of ZeRO have to wait: nothing here computes memory yet.
"""

from fractions import Fraction

import pytest

from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.models import read_model

H, HEADS, LAYERS, FFN, VOCABULARY = 256, 8, 4, 512, 1024
LLAMA = {
    "model_type": "llama",
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": FFN,
    "vocab_size": VOCABULARY,
}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
    "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 1024,
}  # fmt: skip
PSI = read_model(LLAMA).weights_total
B, S = 2, 512
every_size = pytest.mark.parametrize("n", [2, 4, 8])


def bill(model=LLAMA, micro_batches: int = 1, sequence: int = S, **fields) -> Ledger:
    """One step of ``micro_batches`` of B sequences on each data rank, in fp16 unless said otherwise, without scalars."""
    ranks = fields["parallel"].get("data", {}).get("size", 1)
    batch = {"sequence": sequence, "micro_batch": B, "global_batch": B * ranks * micro_batches}
    quiet = {"gradient_norm": False, "loss": False}
    return analyze(
        Job(**{"model": model, "batch": batch, "precision": {"weights": "fp16"}, "scalars": quiet, **fields})
    )


def sent(ledger: Ledger, **which) -> int:
    return sum(event.totals.sent_bytes for event in ledger.filter(**which))


# -- A.1 data parallel -----------------------------------------------------------------------------------------------


@every_size
@pytest.mark.parametrize(
    ("strategy", "psi"),
    [
        ("ddp", 2),  # Rajbhandari et al. 2020, section 7.1; grade S
        ("zero1", 2),  # section 7.2.1; grade S
        ("zero2", 2),  # section 7.2.1; grade S
        ("zero3", 3),  # section 7.2.2: 1.5 times; grade S
        ("fsdp", 3),  # Zhao et al. 2023, section 3.2: 3 M (W - 1) / W; grade T
    ],
)
def test_data_parallel_volume(strategy, psi, n):
    ledger = bill(parallel={"data": {"strategy": strategy, "size": n}})
    assert sent(ledger) == psi * 2 * PSI * Fraction(n - 1, n)


@pytest.mark.parametrize(("hosts", "gpus"), [(2, 4), (4, 2), (2, 2)])
def test_hybrid_sharding_across_hosts(hosts, gpus):
    """Zhao et al. 2023, section 3.2.2: cross-host traffic 2 M (W - 1) / (G W) for whole replicas on hosts of G.

    Theirs is the all-reduce of one shard, M / G, over the W / G replicas: exactly 2 (M / G) (W / G - 1) / (W / G). They
    write (W - 1) / W for its last factor, which is the same to first order; the exact one is what is checked. Grade T.
    """
    world = hosts * gpus
    parallel = {"data": {"strategy": "fsdp", "size": world, "replicate": hosts}}
    ledger = bill(parallel=parallel, cluster={"gpus_per_node": gpus})
    weights = 2 * PSI
    across = sum(event.totals.inter_node_bytes for event in ledger)
    assert across == 2 * Fraction(weights, gpus) * Fraction(hosts - 1, hosts)
    assert across <= Fraction(2 * weights * (world - 1), gpus * world)
    inside = sum(event.totals.intra_node_bytes for event in ledger)
    assert inside == 3 * weights * Fraction(gpus - 1, gpus)


def test_hsdp_reduces_a_shard_over_the_replicas():
    """Traps 5.4: all-gather and reduce-scatter of all of S over the shard group, then all-reduce of S / n_shard."""
    ledger = bill(parallel={"data": {"strategy": "fsdp", "size": 8, "replicate": 2}})
    reduced = sum(event.calls * event.payload_bytes for event in ledger.filter(op="all_reduce"))
    scattered = sum(event.calls * event.payload_bytes for event in ledger.filter(op="reduce_scatter"))
    assert (scattered, reduced) == (2 * PSI, 2 * PSI // 4)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_accumulation(m):
    """Traps 5.4: ZeRO-2 f (m N + N), ZeRO-1 and DDP once a step, FSDP gathers and reduces every micro-batch, and
    ``no_sync`` skips the reduce-scatters, not the gathers.
    """
    f, weights = Fraction(3, 4), 2 * PSI
    of = {
        "ddp": 2,
        "zero1": 2,
        "zero2": m + 1,
        "fsdp": 3 * m,
    }
    for strategy, times in of.items():
        assert (
            sent(bill(parallel={"data": {"strategy": strategy, "size": 4}}, micro_batches=m))
            == times * f * weights
        )
    skipping = {"strategy": "fsdp", "size": 4, "gradient_sync": "last_micro_batch"}
    assert sent(bill(parallel={"data": skipping}, micro_batches=m)) == (2 * m + 1) * f * weights
    kept = {**skipping, "gather": "once"}
    assert sent(bill(parallel={"data": kept}, micro_batches=m)) == 2 * f * weights
    every = {"strategy": "ddp", "size": 4, "gradient_sync": "every_micro_batch"}
    assert sent(bill(parallel={"data": every}, micro_batches=m)) == 2 * m * f * weights


def test_gathered_weights_kept_until_backward_save_one_gather():
    """Llama 3 (Grattafiori et al. 2024, section 3.3.2) does not reshard after the forward pass: 2 Psi. Grade T."""
    data = {"strategy": "fsdp", "size": 8, "reshard_after_forward": False}
    assert sent(bill(parallel={"data": data})) == 2 * 2 * PSI * Fraction(7, 8)


def test_fp32_gradients_double_the_reduce_scatter():
    """Llama 3, section 3.3.2; Megatron's default with bf16; grades T and R: 2 + 2 + 4 bytes for each weight."""
    ledger = bill(
        parallel={"data": {"strategy": "fsdp", "size": 8}}, precision={"weights": "bf16", "reduce": "fp32"}
    )
    assert sent(ledger) == (2 + 2 + 4) * PSI * Fraction(7, 8)


def test_only_what_is_trained_is_reduced():
    """Frozen weights are gathered, but have no gradients."""
    data = {"strategy": "fsdp", "size": 4}
    ledger = bill(parallel={"data": data}, freeze=["model.layers.*", "model.embed_tokens.*"])
    left = VOCABULARY * H + H
    assert sent(ledger, op="reduce_scatter") == 2 * left * Fraction(3, 4)
    assert sent(ledger, op="all_gather") == 2 * 2 * PSI * Fraction(3, 4)


@pytest.mark.parametrize("c", [1, 2, 4])
def test_fsdp_shards_over_data_and_context(c):
    """Traps 5.7: the group that holds shards of the weights changes with the context ranks."""
    ledger = bill(parallel={"data": {"strategy": "fsdp", "size": 2}, "context": {"size": c}})
    assert {event.group_size for event in ledger.filter(strategy="fsdp")} == {2 * c}


# -- A.2 tensor and sequence parallel --------------------------------------------------------------------------------


def blocks(ledger: Ledger) -> Ledger:
    return ledger.filter(lambda event: event.site.unit == "dense", strategy="tensor")


@every_size
@pytest.mark.parametrize("m", [1, 3])
def test_tensor_parallel_blocks(n, m):
    """Shoeybi et al. 2019 section 3; Narayanan et al. 2021 section 3.2: 2 + 2 all-reduces of b s h a layer and
    micro-batch, 8 b s h (t - 1) / t elements. Grade T.
    """
    ledger = blocks(bill(parallel={"tensor": {"size": n}}, micro_batches=m))
    for phase in ("forward", "backward"):
        events = ledger.filter(phase=phase)
        assert {event.op for event in events} == {"all_reduce"}
        assert {event.payload_bytes for event in events} == {2 * B * S * H}
        assert sum(event.calls for event in events) == 2 * LAYERS * m
    assert sent(ledger) == 2 * 8 * B * S * H * Fraction(n - 1, n) * LAYERS * m


@every_size
def test_sequence_parallel_blocks(n):
    """Korthikanti et al. 2022, section 4.2.2: every all-reduce becomes a reduce-scatter and an all-gather, the same
    volume; DeepSpeed-Ulysses quotes 4 N h forward. Grades S and R.
    """
    ledger = blocks(bill(parallel={"tensor": {"size": n, "sequence_parallel": True}}))
    for op in ("all_gather", "reduce_scatter"):
        for phase in ("forward", "backward"):
            assert sum(event.calls for event in ledger.filter(op=op, phase=phase)) == 2 * LAYERS
    assert {event.op for event in ledger} == {"all_gather", "reduce_scatter"}
    assert sent(ledger) == 2 * 8 * B * S * H * Fraction(n - 1, n) * LAYERS
    assert sent(ledger, phase="forward") == 2 * 4 * B * S * H * Fraction(n - 1, n) * LAYERS


def test_full_recomputation_repeats_the_forward_collectives():
    """Traps 5.3: full recomputation adds 2 all-reduces a layer; selective recomputation adds none."""
    calls = {
        how: sum(event.calls for event in blocks(bill(parallel={"tensor": {"size": 4}}, recompute=how)))
        for how in ("none", "selective", "full")
    }
    assert calls == {"none": 4 * LAYERS, "selective": 4 * LAYERS, "full": 6 * LAYERS}


def test_parallel_cross_entropy():
    """Shoeybi et al. 2019, section 3: b s numbers instead of b s V logits; three all-reduces of 4 B a token (AICB)."""
    ledger = bill(parallel={"tensor": {"size": 4}})
    small = [event for event in ledger.filter(strategy="tensor") if event.payload_bytes == 4 * B * S]
    assert sum(event.calls for event in small) == 3
    gathered = bill(parallel={"tensor": {"size": 4, "loss_parallel": False}}).filter(
        op="all_gather", strategy="tensor"
    )
    assert [event.payload_bytes for event in gathered] == [2 * B * S * VOCABULARY]


# -- A.3 pipeline ----------------------------------------------------------------------------------------------------


def everybody_sends(ledger: Ledger) -> int:
    return sum(event.totals.sent_bytes * len(event.stages) for event in ledger.filter(op="send"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "zb_h2"])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 6)])
def test_pipeline_volume(schedule, p, m):
    """Narayanan et al. 2021, section 4.1: b s h a boundary, micro-batch and direction. Grade T."""
    ledger = bill(parallel={"pipeline": {"size": p, "schedule": schedule}}, micro_batches=m)
    assert everybody_sends(ledger) == 2 * (p - 1) * m * 2 * B * S * H


def test_interleaving_multiplies_messages():
    """Narayanan et al. 2021, section 2.2.2: v times as much; exactly p v - 1 boundaries for p - 1 (traps 5.5)."""
    for v in (1, 2):
        pipeline = {"size": 2, "schedule": "interleaved_1f1b", "chunks": v}
        ledger = bill(parallel={"pipeline": pipeline}, micro_batches=4)
        assert everybody_sends(ledger) == 2 * (2 * v - 1) * 4 * 2 * B * S * H


@pytest.mark.parametrize(("schedule", "times"), [("1f1b", 1), ("zb_h1", 1), ("zb_h2", 1), ("zbv", 2)])
def test_traffic_of_zero_bubble_schedules(schedule, times):
    """sail-sg/zero-bubble README 39f2c18: traffic 1 / 1 / 1 / 2 of 1F1B's for ZB1P, ZB2P, ZBV. Grade R."""
    ledger = bill(parallel={"pipeline": {"size": 2, "schedule": schedule}}, micro_batches=4)
    plain = bill(parallel={"pipeline": {"size": 2, "schedule": "1f1b"}}, micro_batches=4)
    assert everybody_sends(ledger) == times * everybody_sends(plain)


@pytest.mark.parametrize("t", [2, 4])
def test_scatter_gather(t):
    """Narayanan et al. 2021, section 4.1: b s h / t between stages, and an all-gather of b s h on the far side."""
    ledger = bill(
        parallel={"tensor": {"size": t}, "pipeline": {"size": 2, "scatter_gather": True}}, micro_batches=3
    )
    assert {event.payload_bytes for event in ledger.filter(op="send")} == {2 * B * S * H // t}
    gathers = ledger.filter(op="all_gather", strategy="pipeline")
    assert {(event.payload_bytes, event.calls, event.axes) for event in gathers} == {
        (2 * B * S * H, 3, ("tensor",))
    }


# -- A.4 experts -----------------------------------------------------------------------------------------------------


def moved(ledger: Ledger) -> Ledger:
    return ledger.filter(op="all_to_all", strategy="expert")


@every_size
@pytest.mark.parametrize("m", [1, 2])
def test_expert_volume(n, m):
    """4 T k h b (e - 1) / e a layer under even routing: dispatch and combine, forward and backward. Grade M in the list
    of formulas; traps 5.6; GShard (Lepikhin et al. 2020, section 3.3) counts two all-to-alls each way.
    """
    ledger = moved(bill(MIXTRAL, parallel={"data": {"size": n}, "expert": {"size": n}}, micro_batches=m))
    tokens = B * S
    assert sum(event.calls for event in ledger) == 4 * LAYERS * m
    assert sent(ledger) == 4 * tokens * 2 * H * 2 * Fraction(n - 1, n) * LAYERS * m


def test_capacity_pads_to_a_fixed_size():
    """Traps 5.6: T k cf, whatever the routing (Fedus et al. 2021)."""
    for factor in (1.0, 1.25, 2.0):
        expert = {"size": 4, "capacity_factor": factor}
        ledger = moved(bill(MIXTRAL, parallel={"data": {"size": 4}, "expert": expert}))
        assert {event.payload_bytes for event in ledger} == {int(B * S * 2 * factor) * H * 2}


def test_shared_experts_move_nothing_and_dense_blocks_do_not_dispatch():
    """Traps 5.6; one dense block of three."""
    ledger = moved(bill(DEEPSEEK, parallel={"data": {"size": 4}, "expert": {"size": 4}}))
    assert sum(event.calls for event in ledger) == 4 * 2
    assert {event.payload_bytes for event in ledger} == {B * S * 4 * 256 * 2}


def test_fp8_dispatch_with_scales():
    """DeepSeek-V3 report, section 3.3.2; traps 5.6: 1 B and 4 B a 128 elements, 1.03 B an element; combine bf16."""
    precision = {"weights": "bf16", "dispatch": "fp8_block128"}
    ledger = moved(bill(DEEPSEEK, parallel={"data": {"size": 4}, "expert": {"size": 4}}, precision=precision))
    elements = B * S * 4 * 256
    there, back = (ledger.filter(dtype=dtype) for dtype in ("fp8_block128", "bf16"))
    assert {event.payload_bytes for event in there} == {elements + 4 * elements // 128}
    assert {event.payload_bytes for event in back} == {2 * elements}


@pytest.mark.parametrize(("d", "t", "e"), [(8, 1, 4), (4, 2, 4), (8, 1, 8), (4, 2, 2)])
def test_expert_gradients_reduce_over_their_own_group(d, t, e):
    """Traps 5.4: world / (pp etp ep) ranks, not dp; Megatron-LM theoretical_memory_usage.py d98e8a6. Grade R."""
    parallel = {
        "data": {"size": d},
        "tensor": {"size": t, "sequence_parallel": True},
        "expert": {"size": e, "expert_tensor": 1},
    }
    ledger = bill(MIXTRAL, parallel=parallel).filter(strategy="ddp")
    dense = [event for event in ledger if event.axes == ("data",)]
    experts = [event for event in ledger if event.axes == ("expert_data",)]
    assert [event.group_size for event in dense] == [d]
    assert [event.group_size for event in experts] == ([d * t // e] if d * t > e else [])
    routed = read_model(MIXTRAL).weights_routed_experts
    assert [event.payload_bytes for event in experts] == ([2 * routed // e] if d * t > e else [])


# -- A.5 context -----------------------------------------------------------------------------------------------------


def exchanged(ledger: Ledger) -> Ledger:
    return ledger.filter(lambda event: event.op != "recv", strategy="context")


@every_size
def test_ulysses(n):
    """Jacobs et al. 2023, section 3.2; DeepSpeed-Ulysses README 38327e0: four all-to-alls of N h / P forward (Q, K, V,
    output), grade R; USP table 2: 8 forward and backward, (8 / N) b s h counted with factor 1, grade T. On a wire each
    all-to-all of S sends S (P - 1) / P.
    """
    ledger = exchanged(bill(parallel={"context": {"size": n, "method": "ulysses"}}))
    assert sum(event.calls for event in ledger.filter(phase="forward")) == 4 * LAYERS
    assert sum(event.calls for event in ledger) == 8 * LAYERS
    assert sum(event.calls * event.payload_bytes for event in ledger) == 2 * 8 * B * S * H // n * LAYERS
    assert sent(ledger) == 2 * 8 * B * S * H // n * LAYERS * Fraction(n - 1, n)


@every_size
@pytest.mark.parametrize(("model", "share"), [(LLAMA, 1), (GROUPED, Fraction(1, 4))])
def test_ring_attention(n, model, share):
    """Liu et al. 2023: K and V once around forward; K, V and dK, dV backward: 6 b s h / c a hop, c - 1 hops.

    USP table 2 says 4 b s h p2p forward and backward: it counts K, V forward and as much again backward, each as b s h
    for all of a ring's hops. The backward pass moves K, V *and* their gradients, so ours is 6 (c - 1) / c b s h; traps 5.7
    ("bwd KV again + dKV") agrees. With grouped queries the share is 1 / G (USP). Grade T.
    """
    ledger = exchanged(bill(model, parallel={"context": {"size": n, "method": "ring"}}))
    keys_and_values = 2 * B * (S // n) * H * share * 2
    assert sent(ledger, phase="forward") == (n - 1) * keys_and_values * LAYERS
    assert sent(ledger, phase="backward") == 2 * (n - 1) * keys_and_values * LAYERS
    forward = 2 * B * S * H * share * Fraction(n - 1, n)  # USP's elements forward: 2 b s h, exact on a ring
    assert sent(ledger, phase="forward") == 2 * forward * LAYERS


@every_size
def test_gathered_keys_and_values(n):
    """Llama 3, section 3.3.2 (grade T); Megatron context_parallel.md d98e8a6 (grade R): all-gather of K V forward,
    again backward, and reduce-scatter of dK dV.
    """
    ledger = exchanged(bill(GROUPED, parallel={"context": {"size": n, "method": "all_gather"}}))
    whole = 2 * B * S * H // 4 * 2
    assert {event.payload_bytes for event in ledger} == {whole}
    calls = {(event.op, event.phase): event.calls for event in ledger}
    assert calls == {
        ("all_gather", "forward"): LAYERS,
        ("all_gather", "backward"): LAYERS,
        ("reduce_scatter", "backward"): LAYERS,
    }


def test_ulysses_with_fewer_key_heads_than_ranks_copies_them():
    """Traps 5.7: Hkv < cp needs each key and value head c / Hkv times."""
    context = {"size": 8, "method": "ulysses", "replicate_kv_heads": True}
    ledger = exchanged(bill(GROUPED, parallel={"context": context})).filter(phase="forward")
    local = B * S // 8
    payloads = sorted(event.payload_bytes for event in ledger)
    assert payloads == sorted(
        [2 * local * H, 2 * local * H, 2 * local * (H // 8) * 8, 2 * local * (H // 8) * 8]
    )


# -- the small calls that people forget ------------------------------------------------------------------------------


def test_norm_gradients_under_sequence_parallelism():
    """Traps 5.3: weights of norms need a small sum over tensor ranks, once a step in Megatron."""
    ledger = bill(parallel={"tensor": {"size": 4, "sequence_parallel": True}}, micro_batches=3)
    (event,) = ledger.filter(lambda x: x.site.unit == "step", strategy="tensor")
    assert (event.op, event.calls, event.payload_bytes) == ("all_reduce", 1, 2 * (2 * LAYERS + 1) * H)


def test_one_number_for_the_gradient_norm_and_one_for_the_loss():
    ledger = bill(parallel={"tensor": {"size": 2}, "data": {"size": 2}}, scalars={})
    assert [(event.payload_bytes, event.dtype) for event in ledger.filter(strategy="scalars")] == [
        (4, "fp32")
    ] * 2
