"""What do CUDA graphs gain if the batch size changes with each call, and how much memory do they cost?"""

from effbench.experiments import Claim, Found, Pivot, between, fact, geomean, highest, lowest, mean, relative, where

GPU_SECONDS = 280
NEEDS = "cuda"
SWEEPS = {
    "stream": [
        "model=mlp,gpt2",
        "stream=uniform",
        "mode=eager,bucketed-graph",
        "mode.buckets=sglang,powers-of-two,exact",
        "protocol.rounds=3",
        "protocol.budget_s=1",
    ],
    "pools": [
        "model=gpt2",
        "stream=uniform",
        "mode=bucketed-graph",
        "mode.pool=shared,private",
        "mode.order=largest-first,smallest-first",
        "protocol.rounds=1",  # enough for memory, which does not vary
        "protocol.budget_s=1",
    ],
}
TABLES = [
    Pivot("Period over a stream of random batch sizes (ms)", "period_ms", "stream", rows=["model", "buckets"]),
    Pivot(
        "Memory of the graphs (MiB)", lambda rows: rows.graph_pool_bytes / 2**20, "pools", ["model", "order"], "pool"
    ),
]


@Claim("P5", "Graphs add 10 to 30 % of the model's memory.", each=["model", "buckets"])
def p5(stream):
    graphs = where(stream, mode="bucketed-graph")
    reserved = 1 / relative(graphs, "peak_reserved_bytes", "mode", "eager")
    process = 1 / relative(graphs, "process_gpu_bytes", "mode", "eager")
    pools = graphs.graph_pool_bytes / graphs.peak_reserved_bytes * reserved
    holds = {
        "reserved memory": between(mean(reserved - 1), 0.1, 0.3),
        "the process's memory on the device": between(mean(process - 1), 0.1, 0.3),
        "the graphs' own pool": between(mean(pools), 0.1, 0.3),
    }

    def ends(values):
        return [lowest(values), highest(values)]

    also = {
        "reserved memory, mlp, least to most times eager's": ends(reserved[graphs.model == "mlp"]),
        "reserved memory, gpt2": ends(reserved[graphs.model == "gpt2"]),
        "on the device, all": ends(process),
        "pools (MiB)": ends(graphs.graph_pool_bytes / 2**20),
    }
    return Found(holds, also=also)


@Claim("P6", "One pool shared by all captured sizes reduces fragmentation.", unit="×", each="order")
def p6(pools):
    shared = where(pools, pool="shared")
    reserved, pool = (
        geomean(relative(shared, name, "pool", "private")) for name in ("peak_reserved_bytes", "graph_pool_bytes")
    )
    return Found(reserved > 1, reserved, {"the graphs' own memory, private ÷ shared": pool})


@Claim("P15", "CUDA graphs suit highly dynamic batches badly.", unit="×", each="model")
def p15(stream):
    def gain(rows):
        return geomean(relative(rows, "period_ms", "mode", "eager"))

    speedup = gain(where(stream, mode="bucketed-graph"))
    padded, exact = (where(stream, buckets=name) for name in ("sglang", "exact"))
    also = {
        "with SGLang's sizes": gain(padded),
        "one graph for each size that occurs": gain(exact),
        "share of padded rows with SGLang's sizes": mean(fact(padded, "padding_waste")),
        "seconds of capturing, one graph for each size": mean(fact(exact, "capture_s")),
    }
    return Found(speedup < 1, speedup, also)
