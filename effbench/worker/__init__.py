"""The side that imports torch: run one trial in a process of its own, and say how it went.

| module | answers |
|---|---|
| server | how do processes fork from a server that has torch loaded? |
| trial | which phases has a trial, and when is it `degraded` (`judge`)? |
| context | what do the parts of a trial share? |
| step_timer, pairing, duet_member | how are timers, pairs and duets taken? |
| step_times | what did timing find, and how is it recorded? |
| why_marked | why is a figure marked? |
| probe | can the targets be imported, and what is this machine? |
| failures | which status and reason does an exception give? |
| check | what do behaviour checks give? |

A trial goes from a `TrialRequest` to `Timing` and `Pairs` (samples), `TimingFigure` (their median),
`StepTimes` and `PairedSpeedup` (what timing found), and `Trial`, its record.
"""
