"""The side that imports torch: run one trial in a process of its own, and say how it went.

| module | answers |
|---|---|
| server | how do processes fork from a server that has torch loaded? |
| trial | which phases has a trial, and when is it `degraded` (`judge`)? |
| context | what do the parts of a trial share? |
| tasks | what can a server be asked for? |
| timings, pairing, duet_member | how are timers, pairs and duets taken and recorded? |
| probe | can the targets be imported, and what is this machine? |
| failures | which status and reason does an exception give? |
| check | what do behaviour checks give? |

A trial goes from a `TrialRequest` to `Timing` and `Pairs` (samples), `TimingFigure` (their median),
`StepTiming` and `PairedSpeedup` (what timing found), and `Trial`, its record.
"""
