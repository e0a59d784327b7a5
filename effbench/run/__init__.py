"""Plan sweeps and run their trials, here or on a cluster.

| module | answers |
|---|---|
| sweep | how does a sweep begin, end and become a record? |
| plan, selection | which cells run, under which interpreters? |
| resume | which sweep may be continued, and with what? |
| dry_run, progress | what would run, and how long does it take? |
| executors | where do trials run, on this machine or as jobs of a cluster, and what is recorded? |
| schedule | which trials are left, in which order, and which are no longer needed? |
| duets | how do two trials meet that are timed in turn? |
| devices | which GPU and cores does a trial have to itself, and how long may it wait for them? |
| ranks | how do the processes of a trial that uses several devices end together? |
| client, pool | how do processes start from fork servers, and how do they end? |
| interpreters, probe | does an interpreter suit, and what does its machine have? |
"""
