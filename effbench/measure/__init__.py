"""Measure a step: its times, what disturbed them, and whether its output is right.

| module | answers |
|---|---|
| rules | which settings of the protocol does a trial follow? |
| timing | how is a step warmed up and timed? |
| samples | which samples count, and which figure do they give? |
| token_times | when was each token of a request made? |
| pairs, duet | how are two steps, or two processes, timed in turn? |
| host, watch, gpu | were the host and the GPU undisturbed? |
| accuracy, training_accuracy, gradients | is the output that of eager? |
| counters, profile, flops, memory | what else did a call do and need? |
"""
