"""How much memory do CUDA graphs for many batch sizes cost?"""

from effbench.claims import Answer, Claim, by, highest, lowest, mean, ratio, where

GPU_SECONDS = 240
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
}


def mean_share(part):
    return mean(part.share)


@Claim("P5", "Graphs add 10 to 30 % of the model's memory.")
def p5(stream):
    graphs = where(stream, mode="bucketed-graph")
    modes = ["eager", "bucketed-graph"]
    reserved = 1 / ratio(stream, "peak_reserved_bytes", mode=modes)
    process = 1 / ratio(stream, "process_gpu_bytes", mode=modes)
    pools = graphs.graph_pool_bytes / graphs.peak_reserved_bytes * reserved
    shares = {
        "reserved memory": reserved - 1,
        "the process's memory on the device": process - 1,
        "the graphs' own pool": pools,
    }
    holds = {}
    for name, share in shares.items():
        of_parts = by(graphs.assign(share=share), ["model", "buckets"], mean_share)
        for label, fraction in of_parts.items():
            holds[f"{name}: {label}"] = fraction.within(0.1, 0.3)

    def ends(values):
        return [lowest(values), highest(values)]

    also = {
        "reserved memory, mlp, least to most times eager's": ends(reserved[graphs.model == "mlp"]),
        "reserved memory, gpt2": ends(reserved[graphs.model == "gpt2"]),
        "on the device, all": ends(process),
        "pools (MiB)": ends(graphs.graph_pool_bytes / 2**20),
    }
    return Answer(holds, also=also)
